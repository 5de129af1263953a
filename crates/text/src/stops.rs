//! Stop strings in a text that comes in pieces: nothing of one is given away, and nothing after it.

/// Ends a text before the first of its stop strings. However the text is cut, what is given away is
/// the same.
///
/// ```
/// let mut stops = text::Stops::new(["END".to_owned()]);
/// assert_eq!((stops.push("one E"), stops.push("ND two")), ("one ".to_owned(), String::new()));
/// assert_eq!(stops.stopped(), Some(0));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stops {
    stops: Vec<String>,
    /// Text that may turn out to be the beginning of a stop string.
    held: String,
    stopped: Option<usize>,
}

impl Stops {
    /// An empty stop string never occurs.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        Self { stops: stops.into_iter().collect(), ..Self::default() }
    }

    /// Takes more text and returns what is now certain; nothing once a stop string has occurred.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        self.release(false)
    }

    /// The rest of the text, when no more comes or what follows does not belong to it.
    pub fn finish(&mut self) -> String {
        self.release(true)
    }

    /// The stop string that has occurred, as an index into those given.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Takes from `held` what cannot belong to a stop string any more, or everything if `all`.
    fn release(&mut self, all: bool) -> String {
        // The stop that is complete first wins, so the outcome does not depend on where pieces end.
        let found = self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        let found = found.filter_map(|(index, stop)| {
            self.held.find(stop).map(|at| (at + stop.len(), at, index))
        });
        if let Some((_, at, index)) = found.min() {
            self.stopped = Some(index);
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let kept = if all {
            0
        } else {
            self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0)
        };
        let rest = self.held.split_off(self.held.len() - kept);
        std::mem::replace(&mut self.held, rest)
    }
}

/// The length of the longest end of `text` that a longer text could complete to `stop`.
pub(crate) fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest).rev().find(|n| text.as_bytes().ends_with(&stop.as_bytes()[..*n])).unwrap_or(0)
}
