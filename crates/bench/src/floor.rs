//! The least time that parts of a round can take: the bytes of weights and state they cannot do
//! without, over what memory delivers.

use crate::cost::Read;
use checkpoint::DrafterConfig;
use compute::{KvType, RecurrentLayout};

#[derive(Clone, Copy)]
pub(super) struct Floor<'a> {
    /// The target's weights.
    pub(super) read: &'a Read,
    /// Of a token's keys and values in all layers.
    pub(super) kv_bytes: usize,
    pub(super) state: RecurrentLayout,
    pub(super) drafter: Option<&'a DrafterConfig>,
    /// The drafter's weights and the head that it borrows. Rows that are looked up in a selector's
    /// codebooks are next to nothing beside them.
    pub(super) draft_bytes: u64,
    /// The next-token block's weights and the head that it borrows.
    pub(super) mtp_bytes: u64,
    /// Rows of a prompt's pass, at most.
    pub(super) prompt_rows: usize,
    /// Bytes a second.
    pub(super) bandwidth: f64,
    /// What lies in the host's memory, where something does.
    pub(super) elsewhere: Option<Elsewhere>,
}

/// Weights that a device reads over the bus.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elsewhere {
    /// Bytes a second.
    pub(super) bandwidth: f64,
    /// Bytes that every pass reads.
    pub(super) always: u64,
    /// The share of experts that lie on the device, be it as copies; the best are meant.
    pub(super) on_device: f64,
    /// Tokens of a text whose keys and values lie on the device.
    pub(super) near_tokens: usize,
}

/// All in milliseconds.
impl Floor<'_> {
    fn of(&self, bytes: f64) -> f64 {
        bytes / self.bandwidth * 1e3
    }

    /// A pass of so many rows in all over so many texts, each after so much context.
    pub(super) fn pass(&self, rows: usize, texts: usize, context: usize) -> f64 {
        let far = self.elsewhere.map_or(0, |e| context.saturating_sub(e.near_tokens));
        let of_text = ((context - far) * self.kv_bytes) as f64 + self.state_bytes(context);
        let far_keys = (texts * far * self.kv_bytes) as f64;
        self.weights(rows, 1.0, [texts as f64 * of_text, far_keys])
    }

    /// So many passes over weights, and other bytes of the device and of the host's memory: the bus
    /// and the device's memory can be read at once, so the slower of them counts.
    fn weights(&self, rows: usize, passes: f64, [others, far_others]: [f64; 2]) -> f64 {
        let far = self.elsewhere.map_or(0, |e| e.always + self.read.beyond(rows, e.on_device));
        let near = self.read.by(rows).saturating_sub(far);
        let over_bus = passes * far as f64 + far_others;
        let bus = self.elsewhere.map_or(0.0, |e| over_bus / e.bandwidth * 1e3);
        self.of(passes * near as f64 + others).max(bus)
    }

    /// The recurrent state of a text: an anchor, and what the tape has since: rows start 16 to 47
    /// tokens behind theirs.
    fn state_bytes(&self, context: usize) -> f64 {
        let s = &self.state;
        let since =
            context.min(31) * s.layers * ((s.key_heads + s.value_heads) * s.dim + s.value_heads);
        let anchor = if context < 48 { 0 } else { s.anchor_len() };
        4.0 * (anchor + since) as f64
    }

    /// A prompt: weights once for every pass, keys and values written.
    pub(super) fn prompt(&self, tokens: usize) -> f64 {
        let passes = tokens.div_ceil(self.prompt_rows) as f64;
        let rows = tokens.min(self.prompt_rows);
        self.weights(rows, passes, [(tokens * self.kv_bytes) as f64, 0.0])
    }

    /// A drafter's pass for so many texts. Its cache is f16 whatever the target's is.
    pub(super) fn draft(&self, texts: usize, context: usize) -> f64 {
        let cache = self.drafter.map_or(0, |d| {
            let seen =
                d.layers.iter().map(|layer| layer.window.map_or(context, |w| w.min(context)));
            texts * seen.sum::<usize>() * 2 * d.kv_heads * KvType::F16.row_bytes(d.head_dim)
        });
        self.of(self.draft_bytes as f64 + cache as f64)
    }

    /// A pass of the next-token block.
    pub(super) fn mtp(&self) -> f64 {
        self.of(self.mtp_bytes as f64)
    }

    /// A commit of so many tokens: keys and values and what goes on the tape, read and written. The
    /// anchor that every 32nd token leads to is left out: the median commit folds none.
    pub(super) fn commit(&self, tokens: f64) -> f64 {
        let s = &self.state;
        let kept = tokens * ((s.key_heads + s.value_heads) * s.dim + s.value_heads) as f64;
        let inputs = tokens.min(s.kernel as f64) * s.channels() as f64;
        self.of(2.0 * (tokens * self.kv_bytes as f64 + 4.0 * s.layers as f64 * (kept + inputs)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::synthetic::{self, Mix};

    #[test]
    fn parts_of_a_round_read_what_they_need() {
        let config = synthetic::named("qwen3.6-27b").unwrap();
        let drafter = synthetic::drafters_for("qwen3.6-27b").remove(0);
        let weights = synthetic::Weights::new(&config, Mix::Q4_K_M, 1);
        let read = Read::new(&config, &weights.bytes());
        let state =
            RecurrentLayout { layers: 48, key_heads: 16, value_heads: 48, dim: 128, kernel: 4 };
        let kv_bytes = 16 * 2 * 4 * 512;
        let floor = Floor {
            read: &read,
            kv_bytes,
            state,
            drafter: Some(&drafter),
            draft_bytes: 1000,
            mtp_bytes: 0,
            prompt_rows: 2048,
            bandwidth: 1e3,
            elsewhere: None,
        };
        // A byte takes a millisecond here.
        assert_eq!(floor.pass(1, 1, 200) - floor.pass(1, 1, 100), (100 * kv_bytes) as f64);
        let text = (100 * kv_bytes + 4 * (48 * 48 * 128 * 128 + 31 * 48 * (64 * 128 + 48))) as f64;
        assert_eq!(floor.pass(1, 3, 100), floor.pass(1, 0, 0) + 3.0 * text);
        assert_eq!(floor.pass(16, 1, 0), floor.pass(1, 1, 0), "dense");
        let written = |tokens: usize| (tokens * kv_bytes) as f64;
        let passes = |tokens| (floor.prompt(tokens) - written(tokens)) / floor.pass(1, 1, 0);
        assert_eq!([512, 2048, 2049, 32768].map(passes), [1.0, 1.0, 2.0, 16.0]);
        // A bus that is a tenth as fast counts from a tenth of the bytes on.
        let (whole, bus) = (floor.pass(1, 0, 0), 100.0);
        let split = |always: u64| {
            let near_tokens = usize::MAX;
            let elsewhere = Some(Elsewhere { bandwidth: bus, always, on_device: 1.0, near_tokens });
            Floor { elsewhere, ..floor }.pass(1, 0, 0)
        };
        assert_eq!([split(0), split(1000)], [whole, whole - 1000.0]);
        assert_eq!(split(whole as u64), 10.0 * whole);
        // So do keys and values that lie there.
        let far = |near_tokens| {
            let far = Elsewhere { bandwidth: bus, always: 0, on_device: 1.0, near_tokens };
            Floor { elsewhere: Some(far), ..floor }.pass(1, 1, 500_000)
        };
        assert_eq!(far(500_000), floor.pass(1, 1, 500_000));
        assert_eq!(far(499_990), floor.pass(1, 1, 500_000) - (10 * kv_bytes) as f64);
        assert_eq!(far(0), 10.0 * (500_000 * kv_bytes) as f64);
        // Layers that slide see no more than their window.
        assert_eq!(floor.draft(1, 0), 1000.0);
        let full = drafter.layers.iter().filter(|layer| layer.window.is_none()).count();
        let grown = floor.draft(1, 200_000) - floor.draft(1, 100_000);
        assert_eq!(grown, (full * 100_000 * 2 * drafter.kv_heads * drafter.head_dim * 2) as f64);
        assert_eq!(floor.draft(3, 100_000) - 1000.0, 3.0 * (floor.draft(1, 100_000) - 1000.0));
        // Of the convolution's inputs only the last four are kept.
        let token = (2 * (kv_bytes + 4 * 48 * (64 * 128 + 48))) as f64;
        let input = (2 * 4 * 48 * state.channels()) as f64;
        assert_eq!(floor.commit(1.0), token + input);
        assert_eq!(floor.commit(10.0), 10.0 * token + 4.0 * input);
    }
}
