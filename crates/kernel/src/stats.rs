//! Order statistics of measured times. Medians and quartiles only: on shared machines the mean of a run is
//! decided by a few gaps of milliseconds.

/// The middle and the spread of a set of measurements, in the unit of the measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Half of the values are below.
    pub median: f64,
    /// A quarter of the values are below.
    pub p25: f64,
    /// Three quarters of the values are below.
    pub p75: f64,
    /// How many values there are.
    pub count: usize,
}

/// Summarizes values in any order; `None` if there are none. Values that are not numbers sort to the end.
pub fn summarize(values: &[f64]) -> Option<Summary> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |q| quantile(&sorted, q);
    Some(Summary { median: at(0.5)?, p25: at(0.25)?, p75: at(0.75)?, count: sorted.len() })
}

/// The `q`-quantile of sorted values, linear between neighbours; `None` if there are none.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let position = q * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    Some(below + (above - below) * position.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_neighbours() {
        let summary = summarize(&[4.0, 1.0, 3.0, 2.0]).expect("four values");
        assert_eq!((summary.median, summary.p25, summary.p75, summary.count), (2.5, 1.75, 3.25, 4));
    }

    #[test]
    fn one_value_is_all_of_them_and_none_is_nothing() {
        let summary = summarize(&[7.0]).expect("one value");
        assert_eq!((summary.median, summary.p25, summary.p75), (7.0, 7.0, 7.0));
        assert_eq!(summarize(&[]), None);
    }
}
