//! Draws results as SVG files.
//!
//! Bars are medians, whiskers reach from the first quarter of the slices to the last; what the replay costs is drawn
//! as a line, because it is part of every bar.

use std::error::Error;
use std::path::{Path, PathBuf};

use plotters::prelude::*;

use super::super::results::Row;
use crate::failure::{Failure, Result};
use crate::output::kernel_release;

const SIZE: (u32, u32) = (760, 420);
/// Colours of the original and of Runnel's version: apart also for the colour-blind.
const COLOURS: [RGBColor; 2] = [RGBColor(120, 120, 130), RGBColor(0, 114, 178)];

/// Draws the nanoseconds per packet of every row, by locality and variant, into `<name>-ns-per-packet.svg`.
///
/// # Errors
/// The directory or the file cannot be written.
pub fn localities(dir: &Path, name: &str, rows: &[Row]) -> Result<PathBuf> {
    let path = dir.join(format!("{name}-ns-per-packet.svg"));
    let failed = || Failure::new(format!("cannot draw `{}`", path.display()));
    std::fs::create_dir_all(dir).map_err(|e| failed().because(e))?;
    draw(&path, name, rows).map_err(|e| failed().because(e.to_string()))?;
    Ok(path)
}

fn draw(path: &Path, name: &str, rows: &[Row]) -> std::result::Result<(), Box<dyn Error>> {
    let mut places: Vec<&str> = Vec::new();
    for row in rows {
        let place = row.locality.unwrap_or("trace");
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let highest = rows.iter().map(|row| row.ns_p75).fold(1.0, f64::max) * 1.15;
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let table = rows.first().and_then(|row| row.table.as_deref()).unwrap_or("no tables");
    let caption = format!("{name}, {table}: ns per packet, replay included (Linux {})", kernel_release());
    let mut chart = ChartBuilder::on(&root)
        .caption(caption, ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(54)
        .build_cartesian_2d(0.0..places.len() as f64, 0.0..highest)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_desc("ns per packet")
        .light_line_style(WHITE)
        .draw()?;
    for (variant, (label, colour)) in ["original", "runnel"].into_iter().zip(COLOURS).enumerate() {
        let of_variant: Vec<&Row> = rows.iter().filter(|row| row.variant == label).collect();
        let left = |row: &Row| {
            let place = places.iter().position(|p| *p == row.locality.unwrap_or("trace")).unwrap_or(0);
            place as f64 + 0.14 + 0.38 * variant as f64
        };
        let bars = of_variant.iter().map(|row| {
            let x = left(row);
            Rectangle::new([(x, 0.0), (x + 0.34, row.ns_per_packet)], colour.filled())
        });
        let series = chart.draw_series(bars)?;
        series
            .label(label)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        let whiskers = of_variant.iter().flat_map(|row| {
            let (x, cap) = (left(row) + 0.17, 0.03);
            let line = |points: Vec<(f64, f64)>| PathElement::new(points, BLACK.stroke_width(1));
            [
                line(vec![(x, row.ns_p25), (x, row.ns_p75)]),
                line(vec![(x - cap, row.ns_p25), (x + cap, row.ns_p25)]),
                line(vec![(x - cap, row.ns_p75), (x + cap, row.ns_p75)]),
            ]
        });
        chart.draw_series(whiskers)?;
        let text = ("sans-serif", 13).into_font().color(&BLACK);
        let labels = of_variant.iter().map(|row| {
            let value = if label == "runnel" {
                format!("{:.0} ({:.2}x)", row.ns_per_packet, row.speedup)
            } else {
                format!("{:.0}", row.ns_per_packet)
            };
            Text::new(value, (left(row) + 0.03, row.ns_p75 + highest * 0.05), text.clone())
        });
        chart.draw_series(labels)?;
    }
    if let Some(row) = rows.first() {
        let line = [(0.0, row.replay_ns), (places.len() as f64, row.replay_ns)];
        let colour = RGBColor(213, 94, 0);
        let series = chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
        series
            .label("replay itself")
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 12, y)], colour.stroke_width(2)));
    }
    let names = places.iter().enumerate().map(|(i, place)| {
        let text = ("sans-serif", 14).into_font().color(&BLACK);
        Text::new(format!("locality {place}"), (i as f64 + 0.3, -highest * 0.03), text)
    });
    chart.plotting_area().strip_coord_spec();
    chart.draw_series(names)?;
    chart
        .configure_series_labels()
        .background_style(WHITE.filled())
        .border_style(RGBColor(200, 200, 200))
        .position(SeriesLabelPosition::UpperRight)
        .draw()?;
    root.present()?;
    Ok(())
}
