//! What an engine runs on: the backend of its target, where drafters run too unless one has a
//! backend of its own.

use compute::Backend;

/// The backends of an engine.
pub struct Backends {
    /// The target's.
    pub(crate) target: Box<dyn Backend>,
    /// The one that a drafter has to itself.
    pub(crate) own: Option<Box<dyn Backend>>,
    /// What that is called.
    pub(crate) own_name: Option<String>,
}

/// Which of them a drafter runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// The target's.
    Target,
    /// Its own.
    Own,
}

impl From<Box<dyn Backend>> for Backends {
    fn from(target: Box<dyn Backend>) -> Self {
        Self { target, own: None, own_name: None }
    }
}

impl Backends {
    /// A target on the first and the drafter that has weights of its own on the second, which
    /// people call `name`.
    pub fn apart(target: Box<dyn Backend>, drafter: Box<dyn Backend>, name: &str) -> Self {
        Self { target, own: Some(drafter), own_name: Some(name.to_owned()) }
    }

    pub(crate) fn of(&self, home: Home) -> &dyn Backend {
        match (home, &self.own) {
            (Home::Own, Some(own)) => &**own,
            _ => &*self.target,
        }
    }

    pub(crate) fn of_mut(&mut self, home: Home) -> &mut dyn Backend {
        match (home, &mut self.own) {
            (Home::Own, Some(own)) => &mut **own,
            _ => &mut *self.target,
        }
    }

    /// Waits for all of them.
    pub(crate) fn finish(&mut self) -> Result<(), compute::Error> {
        self.target.finish()?;
        self.own.as_mut().map_or(Ok(()), |own| own.finish())
    }
}
