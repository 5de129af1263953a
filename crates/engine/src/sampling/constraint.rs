//! What may be written at all, such as a grammar's language. It follows a path token by token and
//! is asked before each draw; what it says depends on the path alone, so that speculation cannot
//! change the text.

use std::fmt::Debug;

/// A language that a text must stay in.
pub trait Constraint: Debug + Send {
    /// Sets the logits of tokens that may not come next to minus infinity; says why where it cannot
    /// tell.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// Follows a token. Says no, and stays where it is, where the token may not come next.
    fn push(&mut self, token: u32) -> bool;

    /// Takes back the last tokens that were pushed.
    fn pop(&mut self, count: usize);
}
