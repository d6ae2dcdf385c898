//! Traffic and checker together: every packet is judged as soon as it can be.

use std::ops::ControlFlow;

use crate::checker::{Checker, SLACK, Tally, Verdict};
use crate::error::Result;
use crate::traffic::{Packet, Traffic};
use crate::update::Update;

/// Wrong packets of which an explanation is kept.
const EXPLAINED: usize = 5;

/// Judges the packets of a running traffic.
#[derive(Debug)]
pub struct Observer {
    checker: Checker,
    traffic: Traffic,
    explanations: Vec<String>,
}

impl Observer {
    /// Puts the two together. The checker knows the tables as they are before the first packet.
    pub fn new(checker: Checker, traffic: Traffic) -> Observer {
        Observer { checker, traffic, explanations: Vec::new() }
    }

    /// The traffic.
    pub fn traffic(&mut self) -> &mut Traffic {
        &mut self.traffic
    }

    /// Takes note of an update: see [`Checker::update`].
    pub fn update(&mut self, update: &Update) {
        self.checker.update(update);
    }

    /// Judges the packets that ended before `quiet_until`: every update that begins before this time is known. Each
    /// is shown to `seen` with its verdict.
    ///
    /// Errors: the generator has ended by itself.
    pub fn judge(&mut self, quiet_until: u64, mut seen: impl FnMut(&Packet, Verdict)) -> Result<()> {
        let Observer { checker, traffic, explanations } = self;
        traffic.read(|packet| {
            if packet.ended.saturating_add(SLACK) >= quiet_until {
                return ControlFlow::Break(());
            }
            let verdict = checker.judge(packet);
            if verdict == Verdict::Wrong && explanations.len() < EXPLAINED {
                explanations.push(checker.explain(packet));
            }
            seen(packet, verdict);
            ControlFlow::Continue(())
        });
        if self.traffic.has_failed() { self.traffic.stop() } else { Ok(()) }
    }

    /// What was counted so far.
    pub fn tally(&self) -> Tally {
        self.checker.tally()
    }

    /// The first wrong packets, and what the tables held for them.
    pub fn explanations(&self) -> &[String] {
        &self.explanations
    }
}
