//! Speculative decoding without a second model: what followed the last tokens when they stood there before is taken for what
//! follows now, and verified in one step.
//!
//! A draft is looked up in prompt and text so far: the longest match of the last tokens, at least [`MIN_MATCH`] of them, and what
//! followed it. How likely a drafted token is to come true is an account kept by the length of its match. It is kept
//! whether or not drafts are verified, since what a draft would have been worth is seen for free one token later. So it costs
//! nothing to have speculation off, and it is tried again as soon as the text has become one that repeats itself.

use std::collections::HashMap;

/// Fewest tokens of a match.
const MIN_MATCH: usize = 2;
/// Matches longer than this count as this long.
const MAX_MATCH: usize = 9;
/// Most tokens of a draft.
const MAX_DRAFT: usize = 16;
/// Earlier places that are compared.
const MAX_TRIED: usize = 64;
/// A drafted token less likely than this is not verified, however cheap it seems.
const MIN_CHANCE: f64 = 0.15;
/// How much faster a step with drafts must be than without: costs are measured, and measured costs are rough.
const MIN_GAIN: f64 = 1.1;
/// Chances before anything was seen, by the length of the match.
const PRIOR: [f64; MAX_MATCH + 1 - MIN_MATCH] = [0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8];
const NOWHERE: u32 = u32::MAX;

/// Tokens that may come next.
#[derive(Debug, Default, PartialEq, Eq)]
struct Draft {
    tokens: Vec<u32>,
    /// Tokens before it that were the same.
    matched: usize,
}

/// Where each pair of tokens last stood.
#[derive(Debug, Default)]
struct Places {
    /// Place of the second token of a pair.
    last: HashMap<(u32, u32), u32>,
    /// Of the pair that ends at each token: where it ended before.
    before: Vec<u32>,
}

impl Places {
    /// Makes known the pairs that end before `end`.
    fn extend(&mut self, tokens: &[u32], end: usize) {
        for at in self.before.len()..end {
            let pair = at.checked_sub(1).map(|first| (tokens[first], tokens[at]));
            let before = pair.and_then(|pair| self.last.insert(pair, at as u32));
            self.before.push(before.unwrap_or(NOWHERE));
        }
    }

    /// The earlier place that goes on as the last tokens do, the latest of those with the longest match.
    fn longest(&self, tokens: &[u32]) -> Option<(usize, usize)> {
        let last = tokens.len().checked_sub(1)?;
        let pair = (tokens[last.checked_sub(1)?], tokens[last]);
        let mut place = self.last.get(&pair).copied().unwrap_or(NOWHERE);
        let mut best: Option<(usize, usize)> = None;
        for _ in 0..MAX_TRIED {
            let Some(at) = usize::try_from(place)
                .ok()
                .filter(|at| *at < self.before.len())
            else {
                break;
            };
            let matched = (0..MAX_MATCH.min(at + 1))
                .take_while(|back| tokens[at - back] == tokens[last - back])
                .count();
            if best.is_none_or(|(_, longest)| matched > longest) {
                best = Some((at, matched));
                if matched == MAX_MATCH {
                    break;
                }
            }
            place = self.before[at];
        }
        best
    }
}

/// How often drafted tokens came true lately, by the length of their match.
#[derive(Clone, Debug)]
pub(super) struct Account {
    chance: [f64; PRIOR.len()],
    /// Tokens seen of each length, up to [`Account::MEMORY`].
    seen: [u32; PRIOR.len()],
}

impl Default for Account {
    fn default() -> Self {
        Self {
            chance: PRIOR,
            seen: [0; PRIOR.len()],
        }
    }
}

impl Account {
    /// Tokens over which a chance is the mean, later ones counting more.
    const MEMORY: u32 = 16;
    /// How many of them another sequence's account begins with.
    const INHERITED: u32 = 4;

    fn class(matched: usize) -> usize {
        matched.clamp(MIN_MATCH, MAX_MATCH) - MIN_MATCH
    }

    fn chance(&self, matched: usize) -> f64 {
        self.chance[Self::class(matched)]
    }

    fn note(&mut self, matched: usize, came_true: bool) {
        let class = Self::class(matched);
        self.seen[class] = (self.seen[class] + 1).min(Self::MEMORY);
        // The prior weighs as much as two tokens.
        let weight = 1.0 / (f64::from(self.seen[class]) + 2.0);
        let outcome = f64::from(u8::from(came_true));
        self.chance[class] += (outcome - self.chance[class]) * weight;
    }

    /// The beginning of another sequence's.
    fn inherited(&self) -> Self {
        Self {
            chance: self.chance,
            seen: self.seen.map(|seen| seen.min(Self::INHERITED)),
        }
    }
}

/// The drafts of one sequence.
#[derive(Debug)]
pub(super) struct Drafter {
    places: Places,
    account: Account,
    draft: Draft,
}

impl Drafter {
    /// Of a sequence in a model whose texts came to this account.
    pub(super) fn new(account: &Account) -> Self {
        Self {
            places: Places::default(),
            account: account.inherited(),
            draft: Draft::default(),
        }
    }

    /// Makes known the first `end` of `tokens`, so that the first look-up doesn't take the time of a long prompt.
    pub(super) fn read(&mut self, tokens: &[u32], end: usize) {
        self.places
            .extend(tokens, end.min(tokens.len().saturating_sub(1)));
    }

    /// Looks up what may follow `tokens`.
    pub(super) fn look_up(&mut self, tokens: &[u32]) {
        let draft = &mut self.draft;
        draft.tokens.clear();
        // The last pair is asked for before it is made known.
        self.places.extend(tokens, tokens.len().saturating_sub(1));
        let Some((at, matched)) = self.places.longest(tokens) else {
            return;
        };
        draft.matched = matched;
        for next in at + 1..=at + MAX_DRAFT {
            // What follows may run into the draft itself.
            let token = tokens.get(next).copied();
            let token = token.unwrap_or_else(|| draft.tokens[next - tokens.len()]);
            draft.tokens.push(token);
        }
    }

    /// The first `count` tokens of the draft.
    pub(super) fn tokens(&self, count: usize) -> &[u32] {
        &self.draft.tokens[..count.min(self.draft.tokens.len())]
    }

    /// The chance of each token of the draft to be reached and to come true.
    fn chances(&self) -> impl Iterator<Item = f64> {
        let matched = self.draft.matched;
        (0..self.draft.tokens.len()).scan(1.0, move |chance, at| {
            *chance *= self.account.chance(matched + at);
            Some(*chance)
        })
    }

    /// Enters into the accounts what came instead of the draft, or as it said.
    pub(super) fn note(&mut self, came: &[u32], model: &mut Account) {
        for (at, (drafted, token)) in self.draft.tokens.iter().zip(came).enumerate() {
            let matched = self.draft.matched + at;
            self.account.note(matched, drafted == token);
            model.note(matched, drafted == token);
            if drafted != token {
                break;
            }
        }
        self.draft.tokens.clear();
    }
}

/// How many tokens of each draft to verify in a step of `rows` rows beside them: the number that gives most tokens in the time
/// that such a step takes, at most `room` in all and `limit` of each. None where the cost of a step is not known.
pub(super) fn choose(
    drafters: &[(&Drafter, usize)],
    rows: usize,
    room: usize,
    cost: impl Fn(usize) -> Option<f64>,
) -> Vec<usize> {
    let mut chosen = vec![0; drafters.len()];
    let mut candidates: Vec<(f64, usize)> = Vec::new();
    for (index, (drafter, limit)) in drafters.iter().enumerate() {
        let chances = drafter.chances().take(*limit);
        candidates.extend(
            chances
                .take_while(|chance| *chance >= MIN_CHANCE)
                .map(|chance| (chance, index)),
        );
    }
    let Some(plain) = cost(rows).filter(|_| !candidates.is_empty()) else {
        return chosen;
    };
    // A stable sort: of one draft the earlier token, which is at least as likely, comes first.
    candidates.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    candidates.truncate(room);
    let mut tokens = rows as f64;
    let (mut best, mut count) = (tokens / plain * MIN_GAIN, 0);
    for (at, (chance, _)) in candidates.iter().enumerate() {
        tokens += chance;
        let rate = cost(rows + at + 1).map_or(0.0, |cost| tokens / cost);
        if rate > best {
            (best, count) = (rate, at + 1);
        }
    }
    for (_, index) in &candidates[..count] {
        chosen[*index] += 1;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn draft(tokens: &[u32]) -> (Vec<u32>, usize) {
        let mut drafter = Drafter::new(&Account::default());
        drafter.look_up(tokens);
        (drafter.draft.tokens, drafter.draft.matched)
    }

    #[test]
    fn what_followed_before_is_drafted() {
        let (tokens, matched) = draft(&[1, 2, 3, 4, 5, 9, 1, 2, 3]);
        assert_eq!((&tokens[..4], matched), (&[4, 5, 9, 1][..], 3));
        // The longest match before the latest.
        let (tokens, matched) = draft(&[7, 1, 2, 4, 8, 1, 2, 5, 7, 1, 2]);
        assert_eq!((tokens[0], matched), (4, 3));
        // The latest of equals.
        let (tokens, matched) = draft(&[1, 2, 4, 1, 2, 5, 1, 2]);
        assert_eq!((tokens[0], matched), (5, 2));
        // What repeats itself goes on repeating itself.
        let (tokens, matched) = draft(&[6, 6, 6]);
        assert_eq!((tokens, matched), (vec![6; MAX_DRAFT], 2));
        for none in [&[][..], &[1], &[1, 2], &[1, 2, 1], &[1, 2, 3, 4, 2]] {
            assert!(draft(none).0.is_empty(), "{none:?}");
        }
    }

    #[test]
    fn accounts_follow_what_comes() {
        let mut model = Account::default();
        let mut drafter = Drafter::new(&model);
        let tokens = [1, 2, 3, 1, 2];
        for _ in 0..40 {
            drafter.look_up(&tokens);
            drafter.note(&[8, 1], &mut model);
        }
        assert!(drafter.account.chance(2) < 0.05 && model.chance(2) < 0.05);
        assert_eq!(drafter.account.chance(3), PRIOR[1], "never reached");
        for _ in 0..40 {
            drafter.look_up(&tokens);
            drafter.note(&[3, 1], &mut model);
        }
        assert!(drafter.account.chance(2) > 0.85 && drafter.account.chance(3) > 0.85);
        // Another sequence begins with what was seen, and soon has its own.
        let other = model.inherited();
        assert_eq!(other.chance(2), model.chance(2));
        assert_eq!(other.seen[0], Account::INHERITED);
        drafter.note(&[3], &mut model);
        assert_eq!(other.chance(2), model.chance(2), "a draft is entered once");
    }

    fn sure(chance: f64) -> Drafter {
        let mut drafter = Drafter::new(&Account::default());
        drafter.account.chance = [chance; PRIOR.len()];
        drafter.look_up(&[1, 2, 3, 1, 2]);
        drafter
    }

    #[test]
    fn drafts_are_verified_where_that_pays() {
        let (likely, unlikely) = (sure(0.9), sure(0.2));
        let choose_one = |drafter: &Drafter, limit: usize, room: usize, row: f64| {
            let cost = |rows: usize| Some(1.0 + row * (rows - 1) as f64);
            choose(&[(drafter, limit)], 1, room, cost)[0]
        };
        assert_eq!(choose_one(&likely, 16, 16, 0.0), 16);
        assert_eq!(choose_one(&likely, 5, 16, 0.0), 5);
        assert_eq!(choose_one(&likely, 16, 3, 0.0), 3);
        let some = choose_one(&likely, 16, 16, 0.3);
        assert!((2..12).contains(&some), "{some}");
        assert_eq!(choose_one(&likely, 16, 16, 1.0), 0);
        assert_eq!(choose_one(&unlikely, 16, 16, 0.0), 1);
        assert_eq!(choose_one(&unlikely, 16, 16, 0.3), 0);
        assert_eq!(choose(&[(&likely, 16)], 1, 16, |_| None), [0]);
        // Where a few more rows cost much and the next ones nothing, it is all or none.
        let steps = |rows: usize| Some(if rows == 1 { 1.0 } else { 2.0 });
        assert_eq!(choose(&[(&likely, 16)], 1, 16, steps), [16]);
        // The likelier draft of two gets what room there is.
        assert_eq!(
            choose(&[(&unlikely, 16), (&likely, 16)], 2, 4, |_| Some(1.0)),
            [0, 4]
        );
    }

    proptest! {
        /// Against the plain definition: the longest earlier match, the latest of equals, and what follows it.
        #[test]
        fn equals_the_plain_search(
            tokens in proptest::collection::vec(0u32..4, 0..60),
            cuts in proptest::collection::vec(1usize..9, 0..12),
        ) {
            let mut drafter = Drafter::new(&Account::default());
            let mut end = 0;
            for cut in cuts.into_iter().chain([tokens.len()]) {
                end = (end + cut).min(tokens.len());
                drafter.look_up(&tokens[..end]);
                drafter.read(&tokens, end / 2);
            }
            let mut best: Option<(usize, usize)> = None;
            for at in 1..tokens.len().saturating_sub(1) {
                let matched = (0..=at.min(MAX_MATCH - 1))
                    .take_while(|back| tokens[at - back] == tokens[tokens.len() - 1 - back])
                    .count();
                if matched >= MIN_MATCH && best.is_none_or(|(_, longest)| matched >= longest) {
                    best = Some((at, matched));
                }
            }
            match best {
                None => prop_assert!(drafter.draft.tokens.is_empty()),
                Some((at, matched)) => {
                    let mut long = tokens.clone();
                    for next in at + 1..=at + MAX_DRAFT {
                        long.push(long[next]);
                    }
                    prop_assert_eq!(drafter.draft.matched, matched);
                    prop_assert_eq!(&drafter.draft.tokens[..], &long[tokens.len()..]);
                }
            }
        }
    }
}
