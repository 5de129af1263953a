//! What the states of a model belong to: a hash of everything that their bits depend on. States in
//! files are found under it alone, so that a changed file, flag, card or program finds none.

use anyhow::{Context, Result};
use checkpoint::{Drafter, Target, Weights};
use engine::Engine;
use store::{Identifier, Identity};

/// The identity of an engine that has taken a model in. `settings` are flags that change numbers
/// and are in no configuration.
pub(crate) fn identify(
    target: &Target,
    drafter: Option<&Drafter>,
    engine: &mut Engine,
    settings: &str,
) -> Result<Identity> {
    let mut identifier = Identifier::default();
    // Kernels, orders of sums, how a state is laid out: whatever this program does is in its bytes.
    // A list of what matters would be shorter, and wrong one day.
    identifier.add_program().context("reading this program, to tell its states from others'")?;
    identifier.add("arithmetic", engine.backend().arithmetic().as_bytes());
    identifier.add("settings", settings.as_bytes());
    identifier.add("target", format!("{:?}", target.config).as_bytes());
    add_weights(&mut identifier, &target.weights);
    if let Some(drafter) = drafter {
        identifier.add("drafter", format!("{:?}", drafter.config).as_bytes());
        // Its keys and values are its own backend's work, where it has one.
        let own = engine.drafter_backend().map(|own| own.arithmetic());
        let arithmetic = own.unwrap_or_else(|| engine.backend().arithmetic());
        identifier.add("drafter's arithmetic", arithmetic.as_bytes());
        add_weights(&mut identifier, &drafter.weights);
    }
    // The type of the cache, and which weights another processor multiplies with.
    identifier.add("options", format!("{:?}", engine.model().options()).as_bytes());
    identifier.add("asked", engine.drafters_asked().join(",").as_bytes());
    Ok(identifier.finish())
}

/// All of them: two models that differ in one number differ.
fn add_weights(identifier: &mut Identifier, weights: &Weights) {
    for weight in weights.iter() {
        let about = format!("{} {} {:?}", weight.name, weight.ty, weight.shape);
        identifier.add(&about, &weights.bytes(weight));
    }
}
