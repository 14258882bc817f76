//! Room for replies: so many at once, and a queue of those that wait for them, in the order of their requests.
//!
//! The engines have queues of their own, behind these places: this one bounds what the whole server takes on, and tells who comes too
//! late when to try again.

use super::errors::Problem;
use crate::manifest::Limit;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many ends of replies the rate is taken from.
const ENDS: usize = 64;
/// Longest time that a client is told to wait, in seconds.
const LONGEST: f64 = 600.0;

/// The places and the queue.
#[derive(Debug)]
pub(super) struct Queue {
    slots: Arc<Semaphore>,
    /// Replies at once.
    most: u32,
    /// Replies that may wait.
    room: u32,
    /// How long they may.
    time: Limit,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: u32,
    /// When replies have ended lately.
    ends: VecDeque<Instant>,
}

/// A place in the queue, or past it; left when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    queue: Arc<Queue>,
    count: u32,
    since: Instant,
    permit: Option<OwnedSemaphorePermit>,
    waits: bool,
}

/// Room for a reply, given back when this is dropped.
#[derive(Debug)]
pub(super) struct Room {
    queue: Arc<Queue>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Queue {
    pub(super) fn new(most: u32, room: u32, time: Limit) -> Arc<Self> {
        Arc::new(Self {
            slots: Arc::new(Semaphore::new(most as usize)),
            most,
            room,
            time,
            state: Mutex::default(),
        })
    }

    /// Replies at once.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// Of these, how many are free.
    pub(super) fn free(&self) -> usize {
        self.slots.available_permits()
    }

    /// Replies that wait.
    pub(super) fn waiting(&self) -> u32 {
        self.state().waiting
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for the replies of one request: all or none, so that none waits for what another has.
    ///
    /// # Errors
    /// The queue is full, or there are more replies than are ever made at once.
    pub(super) fn enter(self: &Arc<Self>, count: usize) -> Result<Place, Problem> {
        let most = self.most;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if count > most {
            let message =
                format!("{count} replies to one request, and no more than {most} are made at once");
            return Err(Problem::invalid(message));
        }
        let mut state = self.state();
        let mut place = Place {
            queue: self.clone(),
            count,
            since: Instant::now(),
            permit: None,
            waits: false,
        };
        // Nobody passes those that wait.
        if state.waiting == 0 {
            place.permit = self.slots.clone().try_acquire_many_owned(count).ok();
        }
        if place.permit.is_some() {
            return Ok(place);
        }
        let waiting = state.waiting.saturating_add(count);
        if waiting > self.room {
            let seconds = seconds(&state, waiting, Instant::now());
            let now = state.waiting;
            drop(state);
            let message = format!(
                "no room: replies being made at once: {most} (`replies`), waiting for their turn: {now} of {} (`queue`)",
                self.room
            );
            return Err(Problem::busy(message).after(seconds));
        }
        state.waiting = waiting;
        place.waits = true;
        drop(state);
        Ok(place)
    }
}

/// After how many seconds so many replies may have ended.
fn seconds(state: &State, count: u32, now: Instant) -> u32 {
    let Some(first) = state.ends.front().filter(|_| state.ends.len() > 1) else {
        return 1;
    };
    let each = now.duration_since(*first).as_secs_f64() / (state.ends.len() as f64);
    (each * f64::from(count)).ceil().clamp(1.0, LONGEST) as u32
}

impl Place {
    /// Waits until there is room.
    ///
    /// # Errors
    /// There is none in time.
    pub(super) async fn room(mut self) -> Result<Room, Problem> {
        let queue = self.queue.clone();
        if self.permit.is_none() {
            let acquire = queue.slots.clone().acquire_many_owned(self.count);
            let acquired = match queue.time.0 {
                Some(time) => {
                    let left = time.saturating_sub(self.since.elapsed());
                    tokio::time::timeout(left, acquire).await.ok()
                }
                None => Some(acquire.await),
            };
            // It is never closed.
            self.permit = acquired.and_then(Result::ok);
        }
        let permit = self.permit.take();
        if permit.is_none() {
            let state = queue.state();
            let seconds = seconds(&state, state.waiting, Instant::now());
            drop(state);
            let message = format!("no reply has made room within {}", queue.time);
            return Err(Problem::busy(message).after(seconds));
        }
        Ok(Room { queue, permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.waits {
            let mut state = self.queue.state();
            state.waiting = state.waiting.saturating_sub(self.count);
        }
    }
}

impl Room {
    /// Room for one of the replies.
    pub(super) fn split(&mut self) -> Self {
        Self {
            queue: self.queue.clone(),
            permit: self.permit.as_mut().and_then(|permit| permit.split(1)),
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take().filter(|permit| permit.num_permits() > 0) else {
            return;
        };
        let mut state = self.queue.state();
        for _ in 0..permit.num_permits().min(ENDS) {
            if state.ends.len() == ENDS {
                state.ends.pop_front();
            }
            state.ends.push_back(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn one_after_the_other_and_no_more_than_may_wait() {
        let queue = Queue::new(2, 2, Limit::seconds(60));
        let mut first = queue.enter(2).unwrap().room().await.unwrap();
        let second = queue.enter(1).unwrap();
        let third = queue.enter(1).unwrap();
        assert_eq!((queue.free(), queue.waiting()), (0, 2));
        let refused = queue.enter(1).unwrap_err();
        assert!(refused.json().to_string().contains("turn: 2 of 2"));
        // One that leaves makes room for another.
        drop(third);
        let third = queue.enter(1).unwrap();
        assert_eq!(queue.waiting(), 2);
        let half = first.split();
        drop(half);
        let second = second.room().await.unwrap();
        drop(first);
        let third = third.room().await.unwrap();
        assert_eq!((queue.free(), queue.waiting()), (0, 0));
        drop((second, third));
        assert_eq!(queue.free(), 2);
        assert!(queue.enter(3).is_err(), "more than ever fit");
    }

    #[tokio::test]
    async fn who_waits_too_long_is_told_when_to_come_again() {
        let queue = Queue::new(1, 4, Limit(Some(Duration::from_millis(20))));
        let first = queue.enter(1).unwrap().room().await.unwrap();
        let late = queue.enter(1).unwrap().room().await.unwrap_err();
        assert!(late.json().to_string().contains("within 20ms"));
        assert_eq!(queue.waiting(), 0);
        drop(first);
    }

    #[test]
    fn times_come_from_the_rate_of_ends() {
        let now = Instant::now();
        let ago = |seconds| now - Duration::from_secs(seconds);
        let mut state = State::default();
        assert_eq!(seconds(&state, 9, now), 1);
        state.ends = [ago(10), ago(8), ago(6), ago(4)].into();
        assert_eq!(seconds(&state, 4, now), 10);
        state.ends = [ago(9000), ago(8000)].into();
        assert_eq!(seconds(&state, 4, now), 600);
    }
}
