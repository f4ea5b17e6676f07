//! Charts as SVG.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// What is shown of a bar: how far it has come on the way to a goal.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it is.
    pub name: String,
    /// What was reached.
    pub value: f64,
    /// What was to be.
    pub goal: f64,
}

/// Of what is not data.
const GREY: RGBColor = RGBColor(190, 190, 190);

const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(23, 190, 207),
];

fn colour(number: usize) -> RGBColor {
    COLOURS
        .get(number % COLOURS.len())
        .copied()
        .unwrap_or(BLACK)
}

/// Lines over one another.
///
/// # Errors
/// If the file cannot be written.
pub fn lines(file: &Path, title: &str, x: &str, y: &str, all: &[Series]) -> Result<()> {
    draw_lines(file, title, (x, y), all)
        .map_err(|error| anyhow!("draw {}: {error}", file.display()))
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw_lines(file: &Path, title: &str, (x, y): (&str, &str), all: &[Series]) -> Drawn {
    let root = SVGBackend::new(file, (900, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let points = || all.iter().flat_map(|series| &series.points);
    let right = points().map(|point| point.0).fold(1e-9, f64::max);
    let top = points().map(|point| point.1).fold(1e-9, f64::max);
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..right, 0.0..top * 1.08)?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .light_line_style(WHITE)
        .draw()?;
    for (number, series) in all.iter().enumerate() {
        let style = colour(number).stroke_width(2);
        chart
            .draw_series(LineSeries::new(series.points.iter().copied(), style))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(GREY)
        .draw()?;
    root.present()?;
    Ok(())
}

/// Bars from the left, each with a mark at its goal. The axis is logarithmic: a ratio of two is as wide wherever it stands.
///
/// # Errors
/// If the file cannot be written.
pub fn bars(file: &Path, title: &str, all: &[Bar]) -> Result<()> {
    draw_bars(file, title, all).map_err(|error| anyhow!("draw {}: {error}", file.display()))
}

fn draw_bars(file: &Path, title: &str, all: &[Bar]) -> Drawn {
    const ROW: i32 = 22;
    const LEFT: i32 = 330;
    const WIDTH: i32 = 500;
    const TOP: i32 = 56;
    let rows = i32::try_from(all.len())?;
    let height = u32::try_from(TOP + ROW * rows + 30)?;
    let root = SVGBackend::new(file, (900, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = |size: i32| ("sans-serif", size).into_font();
    root.draw(&Text::new(title.to_owned(), (12, 12), text(20)))?;
    let all_values = || all.iter().flat_map(|bar| [bar.value, bar.goal]);
    let least = all_values().fold(1.0, f64::min).max(0.01) * 0.8;
    let most = all_values().fold(1.0, f64::max) * 1.2;
    let place = |value: f64| {
        let part = (value.max(least) / least).ln() / (most / least).ln();
        LEFT + pixels(part * f64::from(WIDTH))
    };
    for tick in [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0] {
        if (least..most).contains(&tick) {
            let x = place(tick);
            let bottom = TOP + ROW * rows;
            root.draw(&PathElement::new([(x, TOP - 4), (x, bottom)], GREY))?;
            root.draw(&Text::new(
                format!("{tick}x"),
                (x - 8, bottom + 6),
                text(13),
            ))?;
        }
    }
    for (row, bar) in (0..).zip(all) {
        let y = TOP + ROW * row;
        let style = if bar.value >= bar.goal {
            colour(2)
        } else {
            colour(4)
        };
        root.draw(&Text::new(bar.name.clone(), (12, y + 3), text(14)))?;
        root.draw(&Rectangle::new(
            [(LEFT, y + 3), (place(bar.value).max(LEFT + 1), y + ROW - 5)],
            style.filled(),
        ))?;
        let goal = place(bar.goal);
        root.draw(&PathElement::new(
            [(goal, y), (goal, y + ROW - 2)],
            BLACK.stroke_width(2),
        ))?;
        root.draw(&Text::new(
            format!("{:.2}", bar.value),
            (LEFT + WIDTH + 12, y + 3),
            text(14),
        ))?;
    }
    root.present()?;
    Ok(())
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a picture has hundreds of them, and `as` stops at the largest"
)]
fn pixels(length: f64) -> i32 {
    length as i32
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn charts_are_svg_and_have_everything_in_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.svg");
        let series = Series {
            name: "server".to_owned(),
            points: vec![(0.0, 1.0), (10.0, 3.0)],
        };
        lines(&file, "memory", "minutes", "MiB", &[series]).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains("<svg") && text.contains("server") && text.contains("minutes"));
        let bar = Bar {
            name: "E1 stream".to_owned(),
            value: 7.25,
            goal: 7.5,
        };
        bars(&file, "against upstream", &[bar]).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains("E1 stream") && text.contains("7.25"));
        assert!(lines(&folder.path().join("no/a.svg"), "", "", "", &[]).is_err());
    }
}
