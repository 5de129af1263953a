//! Two opinions in one draft: a drafter's tree, and what was looked up.

use super::{Draft, Node};

impl Draft {
    /// The likeliest `most` nodes of this draft and a chain together. The two opinions on what
    /// follows a node are taken for independent: odds of the chain's token are the product of what
    /// both give it. So where a drafter that has read the text is sure of another one, a match that
    /// mostly holds is mostly wrong.
    pub(crate) fn join(&self, chain: &Self, most: usize) -> Self {
        let mut nodes = self.nodes.clone();
        let (mut parent, mut is_inside) = (None, true);
        for Node { token, depth, probability, .. } in &chain.nodes {
            let children: Vec<usize> = match is_inside {
                true => (0..nodes.len()).filter(|i| nodes[*i].parent == parent).collect(),
                false => Vec::new(),
            };
            let same = children.iter().copied().find(|i| nodes[*i].token == *token);
            // What the drafter gives the token: its own word, else what it leaves for all others.
            let others = 1.0 - children.iter().map(|i| nodes[*i].probability).sum::<f32>();
            let given = same.map_or(others, |same| nodes[same].probability).clamp(1e-3, 0.999);
            let (both, neither) = (probability * given, (1.0 - probability) * (1.0 - given));
            let weight = if children.is_empty() { *probability } else { both / (both + neither) };
            let left = (1.0 - weight) / if same.is_some() { 1.0 - given } else { 1.0 };
            children.iter().for_each(|i| nodes[*i].probability *= left);
            let at = same.unwrap_or(nodes.len());
            if same.is_none() {
                nodes.push(Node { token: *token, parent, depth: *depth, probability: weight });
            }
            nodes[at].probability = weight;
            (parent, is_inside) = (Some(at as u32), same.is_some());
        }
        Self { nodes }.likeliest(most)
    }

    /// The likeliest `most` nodes, likelier paths first.
    fn likeliest(&self, most: usize) -> Self {
        let mut paths: Vec<f32> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            paths.push(node.parent.map_or(1.0, |p| paths[p as usize]) * node.probability);
        }
        // A path is no likelier than its beginning, which comes first where they are equal.
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by(|a, b| {
            let deeper = self.nodes[*a].depth.cmp(&self.nodes[*b].depth);
            paths[*b].total_cmp(&paths[*a]).then(deeper)
        });
        let mut places = vec![0; order.len()];
        order.iter().zip(0..).for_each(|(node, place)| places[*node] = place);
        let placed =
            |node: &Node| Node { parent: node.parent.map(|p| places[p as usize]), ..*node };
        let nodes = order.iter().take(most).map(|node| placed(&self.nodes[*node]));
        Self { nodes: nodes.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(tokens: &[u32], probability: f32) -> Draft {
        let node = |(depth, token): (u32, &u32)| Node {
            token: *token,
            parent: depth.checked_sub(2),
            depth,
            probability,
        };
        Draft { nodes: (1..).zip(tokens).map(node).collect() }
    }

    fn tokens(draft: &Draft) -> Vec<(u32, Option<u32>)> {
        draft.nodes.iter().map(|n| (n.token, n.parent)).collect()
    }

    #[test]
    fn opinions_that_agree_are_one_path_and_the_longer_goes_on() {
        let joined = chain(&[1, 2], 0.6).join(&chain(&[1, 2, 3, 4], 0.9), 63);
        assert_eq!(tokens(&joined), [(1, None), (2, Some(0)), (3, Some(1)), (4, Some(2))]);
        // Odds of 9 by odds of 1.5, and its own word where nobody else has one.
        assert!((joined.nodes[0].probability - 13.5 / 14.5).abs() < 1e-5);
        assert!((joined.nodes[3].probability - 0.9).abs() < 1e-6);
    }

    #[test]
    fn opinions_that_differ_share_what_there_is() {
        let joined = chain(&[1, 2], 0.9).join(&chain(&[5, 6, 7], 0.8), 4);
        // Odds of 4 by odds of 1 to 9 are 0.31 for the looked up, and leave 0.69 * 0.9.
        assert_eq!(tokens(&joined), [(1, None), (2, Some(0)), (5, None), (6, Some(2))]);
        let siblings = joined.nodes[0].probability + joined.nodes[2].probability;
        assert!(siblings <= 1.0);
        let doubtful = chain(&[1, 2], 0.9).join(&chain(&[5, 6, 7], 0.3), 2);
        assert_eq!(tokens(&doubtful), [(1, None), (2, Some(0))]);
    }
}
