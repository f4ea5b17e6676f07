//! Figures of several measurements.

/// The middle one; of an even number, the mean of the two in the middle. 0 of none.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    if values.len().is_multiple_of(2) && !values.is_empty() {
        f64::midpoint(at(middle - 1), at(middle))
    } else {
        at(middle)
    }
}

/// How much the second grows with the first, by least squares; 0 if the first does not move.
#[must_use]
pub fn slope(points: &[(f64, f64)]) -> f64 {
    let mean = |of: fn(&(f64, f64)) -> f64| {
        points.iter().map(of).sum::<f64>() / points.len().max(1) as f64
    };
    let (middle_x, middle_y) = (mean(|point| point.0), mean(|point| point.1));
    let (mut shared, mut alone) = (0.0, 0.0);
    for (x, y) in points {
        shared += (x - middle_x) * (y - middle_y);
        alone += (x - middle_x).powi(2);
    }
    if alone == 0.0 { 0.0 } else { shared / alone }
}

/// The one that is furthest on the bad side, if less is worse; 0 of none.
#[must_use]
pub fn least(values: impl IntoIterator<Item = f64>) -> f64 {
    values
        .into_iter()
        .min_by(f64::total_cmp)
        .unwrap_or_default()
}

/// Jain's index of how fair a share is: 1 if all have the same, 1 / n if one has everything. 1 of none.
#[must_use]
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 {
        return 1.0;
    }
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(value: f64, wanted: f64) -> bool {
        (value - wanted).abs() < 1e-9
    }

    #[test]
    fn a_median_is_not_moved_by_one_that_is_far_off() {
        assert!(is(median([1.0, 900.0, 2.0]), 2.0));
        assert!(is(median([4.0, 1.0, 2.0, 3.0]), 2.5));
        assert!(is(median([]), 0.0));
    }

    #[test]
    fn the_least_is_found_wherever_it_stands() {
        assert!(is(least([3.0, 0.5, 2.0]), 0.5));
        assert!(is(least([]), 0.0));
    }

    #[test]
    fn an_index_of_fairness_is_1_for_equal_shares_and_1_by_n_for_one_that_has_all() {
        assert!(is(jain(&[2.0, 2.0, 2.0]), 1.0));
        assert!(is(jain(&[4.0, 0.0, 0.0, 0.0]), 0.25));
        assert!(is(jain(&[1.0, 3.0]), 0.8));
        assert!(is(jain(&[]), 1.0));
    }

    #[test]
    fn a_slope_does_not_depend_on_where_it_starts() {
        let points = [(0.0, 100.0), (10.0, 120.0), (20.0, 140.0)];
        assert!(is(slope(&points), 2.0));
        assert!(is(slope(&points[..1]), 0.0));
    }
}
