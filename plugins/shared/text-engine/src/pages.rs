//! The cache pages of a model: which are free, which sequences hold which, and what finished sequences left behind.
//!
//! Pages whose content is known are kept in a tree: a node is a page with the tokens it holds, its path from the root
//! the tokens before it. A new prompt takes the pages of the longest path that it begins with. A page is
//! - *used* while a sequence holds it (several may: only whole pages are shared, and nobody writes to a whole page),
//! - *cached* while no sequence holds it but the tree does,
//! - *free* otherwise. When no page is free, the cached leaf that was used longest ago is given up.
//!
//! Invariant: a sequence that holds a page of the tree holds every page on the path to it.

use std::collections::BTreeSet;

/// Place of a node.
type NodeId = usize;

#[derive(Debug)]
struct Node {
    page: u32,
    /// At most a page of tokens; only a whole page has children.
    tokens: Box<[u32]>,
    parent: Option<NodeId>,
    children: Vec<NodeId>,
    /// Time of the last use.
    used: u64,
}

/// What is known of the beginning of a prompt.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefix {
    /// Whole pages, now held by the caller.
    pub(crate) pages: Vec<u32>,
    /// Tokens in these pages.
    pub(crate) tokens: usize,
    /// A page that goes on as the prompt does for some tokens: to be copied. Held by the caller until
    /// [`PagePool::release`].
    pub(crate) partial: Option<(u32, usize)>,
}

/// How many pages are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageCounts {
    pub(crate) total: usize,
    pub(crate) used: usize,
    pub(crate) cached: usize,
    /// Pages ever written: what the pool has committed.
    pub(crate) touched: usize,
}

/// The pages of one model's pool.
#[derive(Debug)]
pub(crate) struct PagePool {
    page_size: usize,
    /// Sequences that hold each page.
    holders: Vec<u32>,
    /// Node of each page.
    node_of: Vec<Option<NodeId>>,
    /// Free pages that were written before: taken first, so that memory is committed late.
    free: Vec<u32>,
    /// Pages from here on were never written.
    touched: usize,
    nodes: Vec<Option<Node>>,
    free_nodes: Vec<NodeId>,
    roots: Vec<NodeId>,
    /// Nodes without children whose pages no sequence holds, with the time of their last use: what is given up next comes first.
    idle_leaves: BTreeSet<(u64, NodeId)>,
    /// Pages that the tree has and no sequence holds.
    cached: usize,
    clock: u64,
}

impl PagePool {
    /// A pool of `pages` free pages of `page_size` positions.
    pub(crate) fn new(pages: usize, page_size: usize) -> Self {
        Self {
            page_size,
            holders: vec![0; pages],
            node_of: vec![None; pages],
            free: Vec::new(),
            touched: 0,
            nodes: Vec::new(),
            free_nodes: Vec::new(),
            roots: Vec::new(),
            idle_leaves: BTreeSet::new(),
            cached: 0,
            clock: 0,
        }
    }

    /// A page for one sequence. `None` when sequences hold every page.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        let page = match self.free.pop() {
            Some(page) => page,
            None if self.touched < self.holders.len() => {
                self.touched += 1;
                (self.touched - 1) as u32
            }
            None => self.evict()?,
        };
        debug_assert!(self.holders[page as usize] == 0 && self.node_of[page as usize].is_none());
        self.holders[page as usize] = 1;
        Some(page)
    }

    /// One holder of a page fewer.
    pub(crate) fn release(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        debug_assert!(*holders > 0, "page {page} is released more often than held");
        *holders -= 1;
        if *holders == 0 {
            match self.node_of[page as usize] {
                Some(node) => {
                    self.cached += 1;
                    self.note_leaf(node);
                }
                None => self.free.push(page),
            }
        }
    }

    /// One holder more of a page of the tree.
    fn hold(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders += 1;
        if *holders == 1 {
            self.cached -= 1;
            if let Some(node) = self.node_of[page as usize] {
                self.note_leaf(node);
            }
        }
    }

    /// Enters a node among the idle leaves, or takes it out, as it now is.
    fn note_leaf(&mut self, id: NodeId) {
        let node = self.node(id);
        let entry = (node.used, id);
        if node.children.is_empty() && self.holders[node.page as usize] == 0 {
            self.idle_leaves.insert(entry);
        } else {
            self.idle_leaves.remove(&entry);
        }
    }

    /// Notes that a node is used now.
    fn use_now(&mut self, id: NodeId) {
        self.idle_leaves.remove(&(self.node(id).used, id));
        self.node_mut(id).used = self.clock;
        self.note_leaf(id);
    }

    /// Takes hold of the pages that a prompt begins with. At most `limit` tokens are taken.
    pub(crate) fn take_prefix(&mut self, tokens: &[u32], limit: usize) -> Prefix {
        let tokens = &tokens[..limit.min(tokens.len())];
        self.clock += 1;
        let mut prefix = Prefix::default();
        let mut parent = None;
        loop {
            let rest = &tokens[prefix.tokens..];
            let mut best: Option<(NodeId, usize)> = None;
            for &child in self.children(parent) {
                let common = common_prefix(&self.node(child).tokens, rest);
                if common > best.map_or(0, |(_, length)| length) {
                    best = Some((child, common));
                }
            }
            let Some((child, common)) = best else {
                return prefix;
            };
            self.use_now(child);
            let page = self.node(child).page;
            self.hold(page);
            if common < self.page_size {
                prefix.partial = Some((page, common));
                return prefix;
            }
            prefix.pages.push(page);
            prefix.tokens += common;
            parent = Some(child);
        }
    }

    /// Pages that can be had: free ones, and cached ones that are given up for it.
    pub(crate) fn available(&self) -> usize {
        self.holders.len() - self.counts().used
    }

    /// How many whole pages that tokens begin with sequences hold already: taking them takes no page from anybody.
    pub(crate) fn held_prefix(&self, tokens: &[u32], limit: usize) -> usize {
        let tokens = &tokens[..limit.min(tokens.len())];
        let (mut parent, mut held) = (None, 0);
        for chunk in tokens.chunks_exact(self.page_size) {
            let mut children = self.children(parent).iter();
            let known = children.find(|&&child| *self.node(child).tokens == *chunk);
            match known {
                Some(&node) if self.holders[self.node(node).page as usize] > 0 => {
                    (parent, held) = (Some(node), held + 1);
                }
                _ => break,
            }
        }
        held
    }

    /// Makes known what a sequence's pages hold: `tokens` from position 0 on. Where the tree has a page of the same
    /// content, the sequence's page is swapped for it. With `ended`, a page that is not whole is made known as well:
    /// the sequence must not write to it any more.
    pub(crate) fn keep(&mut self, tokens: &[u32], pages: &mut [u32], ended: bool) {
        self.clock += 1;
        let mut parent = None;
        for (chunk, page) in tokens.chunks(self.page_size).zip(pages) {
            let whole = chunk.len() == self.page_size;
            if !whole && !ended {
                return;
            }
            let known = self.children(parent).iter().copied().find(|&child| {
                let held = &self.node(child).tokens;
                if whole {
                    **held == *chunk
                } else {
                    held.starts_with(chunk)
                }
            });
            let node = match known {
                Some(node) if whole => {
                    let other = self.node(node).page;
                    if other != *page {
                        self.hold(other);
                        self.release(*page);
                        *page = other;
                    }
                    node
                }
                Some(node) => node,
                None => self.insert(parent, chunk, *page),
            };
            self.use_now(node);
            parent = Some(node);
        }
    }

    /// How many pages are in which state.
    pub(crate) fn counts(&self) -> PageCounts {
        PageCounts {
            total: self.holders.len(),
            used: self.touched - self.free.len() - self.cached,
            cached: self.cached,
            touched: self.touched,
        }
    }

    fn insert(&mut self, parent: Option<NodeId>, tokens: &[u32], page: u32) -> NodeId {
        // Unfinished pages that the new one goes on from are of no use any more.
        let outdone: Vec<NodeId> = self
            .children(parent)
            .iter()
            .copied()
            .filter(|&child| {
                let held = &self.node(child).tokens;
                held.len() < self.page_size && tokens.starts_with(held)
            })
            .collect();
        for node in outdone {
            let page = self.remove(node);
            if self.holders[page as usize] == 0 {
                self.free.push(page);
            }
        }
        let node = Node {
            page,
            tokens: tokens.into(),
            parent,
            children: Vec::new(),
            used: self.clock,
        };
        let id = match self.free_nodes.pop() {
            Some(id) => {
                self.nodes[id] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        };
        self.node_of[page as usize] = Some(id);
        self.children_mut(parent).push(id);
        if let Some(parent) = parent {
            self.note_leaf(parent);
        }
        id
    }

    /// Takes a leaf out of the tree; its page is then known to its holders only.
    fn remove(&mut self, id: NodeId) -> u32 {
        let Some(node) = self.nodes[id].take() else {
            unreachable!("node {id} is in the tree")
        };
        debug_assert!(node.children.is_empty());
        self.idle_leaves.remove(&(node.used, id));
        self.children_mut(node.parent).retain(|&child| child != id);
        if let Some(parent) = node.parent {
            self.note_leaf(parent);
        }
        self.node_of[node.page as usize] = None;
        self.free_nodes.push(id);
        if self.holders[node.page as usize] == 0 {
            self.cached -= 1;
        }
        node.page
    }

    /// Gives up the cached leaf that was used longest ago.
    fn evict(&mut self) -> Option<u32> {
        let &(_, oldest) = self.idle_leaves.first()?;
        Some(self.remove(oldest))
    }

    fn node(&self, id: NodeId) -> &Node {
        match &self.nodes[id] {
            Some(node) => node,
            None => unreachable!("node {id} is in the tree"),
        }
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        match &mut self.nodes[id] {
            Some(node) => node,
            None => unreachable!("node {id} is in the tree"),
        }
    }

    fn children(&self, parent: Option<NodeId>) -> &[NodeId] {
        parent.map_or(&self.roots, |parent| &self.node(parent).children)
    }

    fn children_mut(&mut self, parent: Option<NodeId>) -> &mut Vec<NodeId> {
        match parent {
            Some(parent) => &mut self.node_mut(parent).children,
            None => &mut self.roots,
        }
    }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fill(pool: &mut PagePool, tokens: &[u32]) -> Vec<u32> {
        (0..tokens.len().div_ceil(pool.page_size))
            .map(|_| pool.allocate().unwrap())
            .collect()
    }

    fn end(pool: &mut PagePool, tokens: &[u32], mut pages: Vec<u32>) {
        pool.keep(tokens, &mut pages, true);
        pages.iter().for_each(|&page| pool.release(page));
    }

    #[test]
    fn a_prefix_is_found_again() {
        let mut pool = PagePool::new(8, 4);
        let pages = fill(&mut pool, &[0; 10]);
        end(&mut pool, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], pages.clone());
        assert_eq!(
            pool.counts(),
            PageCounts {
                total: 8,
                used: 0,
                cached: 3,
                touched: 3
            }
        );

        let prefix = pool.take_prefix(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 11], 9);
        assert_eq!(
            prefix,
            Prefix {
                pages: pages[..2].to_vec(),
                tokens: 8,
                partial: Some((pages[2], 1))
            }
        );
        pool.release(pages[2]);
        assert_eq!(pool.counts().used, 2);

        let limited = pool.take_prefix(&[1, 2, 3, 4, 5, 6, 7, 8], 7);
        assert_eq!(
            limited,
            Prefix {
                pages: pages[..1].to_vec(),
                tokens: 4,
                partial: Some((pages[1], 3))
            }
        );
        assert_eq!(pool.take_prefix(&[2, 2, 3], 2), Prefix::default());
    }

    #[test]
    fn equal_pages_become_one() {
        let mut pool = PagePool::new(8, 2);
        let mut first = fill(&mut pool, &[1, 2, 3]);
        let mut second = fill(&mut pool, &[1, 2, 4]);
        pool.keep(&[1, 2, 3], &mut first, false);
        pool.keep(&[1, 2, 4], &mut second, false);
        assert_eq!(first[0], second[0]);
        assert_ne!(first[1], second[1]);
        end(&mut pool, &[1, 2, 3], first);
        end(&mut pool, &[1, 2, 4], second);
        assert_eq!(
            pool.counts(),
            PageCounts {
                total: 8,
                used: 0,
                cached: 3,
                touched: 4
            }
        );
    }

    #[test]
    fn an_unfinished_page_gives_way_to_a_longer_one() {
        let mut pool = PagePool::new(8, 4);
        let pages = fill(&mut pool, &[1, 2]);
        end(&mut pool, &[1, 2], pages);
        let pages = fill(&mut pool, &[1, 2, 3]);
        end(&mut pool, &[1, 2, 3], pages);
        let pages = fill(&mut pool, &[1]);
        end(&mut pool, &[1], pages);
        assert_eq!(pool.counts().cached, 1);
        assert_eq!(pool.take_prefix(&[1, 2, 3, 4], 4).partial.unwrap().1, 3);
    }

    #[test]
    fn the_oldest_leaf_goes_first() {
        let mut pool = PagePool::new(4, 2);
        let old = fill(&mut pool, &[1, 2, 3, 4]);
        end(&mut pool, &[1, 2, 3, 4], old.clone());
        let new = fill(&mut pool, &[5, 6, 7, 8]);
        end(&mut pool, &[5, 6, 7, 8], new);
        assert_eq!(pool.allocate(), Some(old[1]));
        assert_eq!(pool.allocate(), Some(old[0]));
        assert_eq!(pool.take_prefix(&[5, 6, 7, 8, 9], 4).tokens, 4);
        assert_eq!(pool.allocate(), None);
    }

    proptest! {
        /// Random lives of sequences against a plain model: what a page holds is what was written to it, nobody's page
        /// changes under them, and everything comes back.
        #[test]
        fn pages_hold_what_they_say(
            lives in proptest::collection::vec((proptest::collection::vec(0u32..3, 1..14), any::<bool>(), 0usize..3), 1..60),
        ) {
            const PAGE: usize = 3;
            let mut pool = PagePool::new(15, PAGE);
            let mut content: Vec<Vec<u32>> = vec![Vec::new(); 15];
            let mut running: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
            for (tokens, share_early, ended) in lives {
                if running.len() == 3 || (ended < running.len()) {
                    let (tokens, mut pages) = running.remove(ended % running.len());
                    for (index, chunk) in tokens.chunks(PAGE).enumerate() {
                        prop_assert_eq!(&content[pages[index] as usize][..chunk.len()], chunk);
                    }
                    pool.keep(&tokens, &mut pages, true);
                    pages.iter().for_each(|&page| pool.release(page));
                }
                let prefix = pool.take_prefix(&tokens, tokens.len() - 1);
                let mut pages = prefix.pages;
                let mut done = prefix.tokens;
                prop_assert!(done < tokens.len());
                if let Some((from, count)) = prefix.partial {
                    let to = pool.allocate().unwrap();
                    content[to as usize] = content[from as usize].clone();
                    pool.release(from);
                    pages.push(to);
                    done += count;
                }
                for (index, chunk) in tokens[..done].chunks(PAGE).enumerate() {
                    prop_assert_eq!(&content[pages[index] as usize][..chunk.len()], chunk);
                }
                for (position, &token) in tokens.iter().enumerate().skip(done) {
                    if pages.len() * PAGE <= position {
                        let page = pool.allocate().unwrap();
                        content[page as usize].clear();
                        pages.push(page);
                    }
                    let page = &mut content[pages[position / PAGE] as usize];
                    page.truncate(position % PAGE);
                    page.push(token);
                }
                if share_early {
                    pool.keep(&tokens, &mut pages, false);
                }
                running.push((tokens, pages));
            }
            let leaves = pool.nodes.iter().enumerate().filter_map(|(id, node)| {
                let node = node.as_ref()?;
                let idle = node.children.is_empty() && pool.holders[node.page as usize] == 0;
                idle.then_some((node.used, id))
            });
            prop_assert_eq!(&pool.idle_leaves, &leaves.collect());
            let held: std::collections::HashSet<u32> = running.iter().flat_map(|(_, pages)| pages.iter().copied()).collect();
            prop_assert_eq!(pool.counts().used, held.len());
            let unheld = pool.nodes.iter().flatten().filter(|node| pool.holders[node.page as usize] == 0).count();
            prop_assert_eq!(pool.counts().cached, unheld);
            for (_, pages) in running {
                pages.iter().for_each(|&page| pool.release(page));
            }
            let counts = pool.counts();
            prop_assert_eq!(counts.used, 0);
            prop_assert_eq!(counts.cached + pool.free.len(), counts.touched);
        }
    }
}
