use super::*;

/// A state is a list of blocks of 10 bytes; stowed, their ids are 1000 more. Those from 500 on lie
/// elsewhere than where passes read. Counts the blocks it copied.
#[derive(Default)]
struct Lists {
    stowed: usize,
    fetched: usize,
    /// How often there is no room yet.
    refusals: usize,
}

struct Away(Vec<usize>);

fn tens(ids: &[usize]) -> Vec<StateBlock> {
    ids.iter().map(|id| StateBlock { id: *id, bytes: 10 }).collect()
}

impl Keeper for Lists {
    type State = Vec<usize>;
    type Stowed = Away;
    fn stow(&mut self, state: &Vec<usize>) -> Option<Away> {
        self.stowed += state.len();
        Some(Away(state.iter().map(|id| id + 1000).collect()))
    }
    fn fetch(&mut self, stowed: &Away) -> Fetched<Vec<usize>> {
        if self.refusals > 0 {
            self.refusals -= 1;
            return Fetched::NoRoom;
        }
        self.fetched += stowed.0.len();
        Fetched::State(stowed.0.iter().map(|id| id - 1000).collect())
    }
    fn near_blocks(&self, state: &Vec<usize>) -> Vec<StateBlock> {
        tens(state).into_iter().filter(|block| block.id < 500).collect()
    }
    fn blocks(state: &Vec<usize>) -> Vec<StateBlock> {
        tens(state)
    }
    fn stowed_blocks(stowed: &Away) -> Vec<StateBlock> {
        tens(&stowed.0)
    }
}

/// A cache with its keeper, with room for so many blocks near and far.
struct Case(PrefixCache<Lists>, Lists, Option<Source>);

impl Case {
    fn new(near: usize, far: usize) -> Self {
        Self(PrefixCache::new(10 * near, 10 * far), Lists::default(), None)
    }
    fn insert(&mut self, tokens: &[u32], state: &[usize]) {
        self.0.insert(&mut self.1, tokens, state.to_vec());
    }
    fn find(&mut self, prompt: &[u32]) -> Option<(usize, Vec<usize>)> {
        let known = self.0.known(prompt);
        let hit = self.0.find(&mut self.1, prompt)?;
        assert_eq!(hit.len, known);
        self.2 = Some(hit.from);
        Some((hit.len, hit.state))
    }
}

#[test]
fn the_longest_beginning_is_found_but_never_all() {
    let mut case = Case::new(9, 0);
    case.insert(&[1], &[1]);
    case.insert(&[1, 2, 3], &[2]);
    case.insert(&[1, 9], &[3]);
    assert_eq!(case.find(&[1, 2, 3, 4]), Some((3, vec![2])));
    assert_eq!(case.find(&[1, 2, 3]), Some((1, vec![1])));
    assert_eq!(case.find(&[1, 2]), Some((1, vec![1])));
    assert_eq!(case.find(&[2, 1]), None);
    assert_eq!(case.find(&[1]), None);
}

#[test]
fn the_least_recently_used_goes_first() {
    let mut case = Case::new(2, 0);
    case.insert(&[1], &[1]);
    case.insert(&[2], &[2]);
    assert!(case.find(&[1, 0]).is_some());
    case.insert(&[3], &[3]);
    assert_eq!(case.find(&[2, 0]), None);
    assert_eq!(case.find(&[1, 0]), Some((1, vec![1])));
    assert_eq!(case.find(&[3, 0]), Some((1, vec![3])));
    assert_eq!((case.0.len(), case.0.bytes()), (2, (20, 0)));
}

#[test]
fn what_cannot_fit_is_not_kept_and_nothing_is_lost_for_it() {
    let mut case = Case::new(2, 0);
    case.insert(&[1], &[1]);
    case.insert(&[2], &[2, 3, 4]);
    assert_eq!(case.find(&[1, 0]), Some((1, vec![1])));
    assert_eq!(case.0.len(), 1);
    let mut none = Case::new(0, 0);
    none.insert(&[1], &[1]);
    assert_eq!(none.0.len(), 0);
}

/// What was put aside takes nothing of the memory where passes read, and goes where a state goes.
#[test]
fn what_lies_elsewhere_is_not_counted_near() {
    let mut case = Case::new(2, 4);
    case.insert(&[1], &[1, 501, 502, 503]);
    case.insert(&[2], &[2, 504, 505, 506, 507]);
    assert_eq!((case.0.len(), case.0.bytes(), case.1.stowed), (2, (20, 0), 0));
    // The first has room in the host's memory, with all it has; the second has not.
    case.insert(&[3], &[3, 4]);
    assert_eq!((case.0.len(), case.0.bytes(), case.1.stowed), (2, (20, 40), 4));
    assert_eq!(case.find(&[1, 0]), Some((1, vec![1, 501, 502, 503])));
    assert_eq!(case.0.bytes(), (10, 20));
}

#[test]
fn the_same_tokens_are_kept_once() {
    let mut case = Case::new(9, 0);
    case.insert(&[1, 2], &[1]);
    case.insert(&[1, 2], &[2]);
    assert_eq!((case.0.len(), case.0.bytes()), (1, (10, 0)));
    assert_eq!(case.find(&[1, 2, 3]), Some((2, vec![1])));
}

#[test]
fn a_block_that_states_share_counts_once() {
    let mut case = Case::new(4, 0);
    case.insert(&[1], &[1, 2]);
    case.insert(&[1, 2], &[1, 2, 3]);
    assert_eq!((case.0.len(), case.0.bytes()), (2, (30, 0)));
    // The older one goes, and leaves what the other needs.
    case.insert(&[9], &[7, 8]);
    assert_eq!(case.0.bytes(), (20, 0));
    assert_eq!((case.0.len(), case.find(&[9, 0])), (1, Some((1, vec![7, 8]))));
}

#[test]
fn states_are_stowed_fetched_and_let_go_of_in_turn() {
    let mut case = Case::new(2, 2);
    for id in 1..=4 {
        case.insert(&[id], &[id as usize]);
    }
    // 1 and 2 are far, 3 and 4 near.
    assert_eq!((case.0.len(), case.0.bytes()), (4, (20, 20)));
    assert_eq!((case.1.stowed, case.1.fetched), (2, 0));
    // 1 comes back, 3 makes room for it.
    assert_eq!(case.find(&[1, 0]), Some((1, vec![1])));
    assert_eq!(case.2, Some(Source::Host));
    assert_eq!((case.1.stowed, case.1.fetched, case.0.bytes()), (3, 1, (20, 20)));
    // Now 1 is near: finding it again copies nothing.
    assert_eq!(case.find(&[1, 0]), Some((1, vec![1])));
    assert_eq!((case.1.stowed, case.1.fetched, case.2), (3, 1, Some(Source::Memory)));
    // 5 pushes 4 out of the near memory and 2, the oldest, out of the far one.
    case.insert(&[5], &[5]);
    assert_eq!((case.0.len(), case.0.bytes()), (4, (20, 20)));
    assert_eq!(case.find(&[2, 0]), None);
    assert!([1, 3, 4, 5].into_iter().all(|id| case.find(&[id, 0]) == Some((1, vec![id as usize]))));
}

#[test]
fn who_listens_can_tell_what_is_kept_where() {
    let (listener, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let mut case = Case::new(2, 2);
    case.0 = case.0.heard_by(Some(listener));
    for id in [1, 2, 3, 1, 4, 5, 2, 6, 5] {
        if case.find(&[id, 0]).is_none() {
            case.insert(&[id], &[id as usize]);
        }
    }
    assert_eq!(heard.try_recv(), Ok(Change::Cleared));
    let mut kept: HashMap<Box<[u32]>, Tier> = HashMap::new();
    let mut stowed = 0;
    while let Ok(Change::Moved { tokens, from, to }) = heard.try_recv() {
        assert_eq!(kept.remove(&tokens), from);
        stowed += usize::from(to == Some(Tier::Host));
        kept.extend(to.map(|to| (tokens, to)));
    }
    let entries = case.0.entries.iter().map(|e| (e.tokens.clone(), e.tier()));
    assert_eq!(kept, entries.collect());
    assert!(stowed > 2 && case.0.len() == 4);
}

#[test]
fn a_state_too_large_for_the_near_memory_is_far_and_stays_there() {
    let mut case = Case::new(2, 4);
    case.insert(&[1], &[1]);
    case.insert(&[2], &[2, 3, 4]);
    assert_eq!(case.0.bytes(), (10, 30));
    assert_eq!(case.find(&[2, 0]), Some((1, vec![2, 3, 4])));
    assert_eq!(case.0.bytes(), (10, 30));
    assert_eq!(case.find(&[1, 0]), Some((1, vec![1])));
}

#[test]
fn what_is_kept_makes_room_for_what_comes_back() {
    let mut case = Case::new(4, 8);
    for id in 1..=6 {
        case.insert(&[id], &[id as usize]);
    }
    // 1 and 2 are far. Texts took the room that its state would come back to.
    case.1.refusals = 2;
    assert_eq!(case.find(&[1, 0]), Some((1, vec![1])));
    assert_eq!((case.2, case.1.stowed, case.0.len()), (Some(Source::Host), 4, 6));
    // Where nothing is left to go the prompt is read.
    case.1.refusals = 9;
    assert_eq!(case.find(&[2, 0]), None);
    assert_eq!(case.0.bytes().0, 0);
}
