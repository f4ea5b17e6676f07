//! Figures of several measurements.

/// The middle one; of an even number, the mean of the two in the middle. 0 of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
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
pub(crate) fn slope(points: &[(f64, f64)]) -> f64 {
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
    fn a_slope_does_not_depend_on_where_it_starts() {
        let points = [(0.0, 100.0), (10.0, 120.0), (20.0, 140.0)];
        assert!(is(slope(&points), 2.0));
        assert!(is(slope(&points[..1]), 0.0));
    }
}
