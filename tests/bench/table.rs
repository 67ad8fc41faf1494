//! Formats the table with results and budgets for the terminal and the report.

use std::fmt::Write as _;
use std::path::Path;

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    pub budget: String,
    pub measured: String,
    /// Whether the budget is met, or `None` if the row has no budget.
    pub met: Option<bool>,
    /// Steps of the measurement. The measured value is the sum of the step durations.
    pub steps: Vec<Step>,
    /// Additional information.
    pub notes: Vec<String>,
}

/// A step of a measurement.
#[derive(Clone, Debug)]
pub struct Step {
    pub name: String,
    pub seconds: f64,
}

impl Row {
    /// Returns a row for a duration in seconds, which must be below the budget.
    pub fn seconds(name: &str, measured: f64, budget: f64) -> Row {
        Row::of(name, format!("{budget} s"), format!("{measured:.2} s"), Some(measured < budget))
    }

    pub fn of(name: &str, budget: impl Into<String>, measured: impl Into<String>, met: Option<bool>) -> Row {
        Row {
            name: name.to_owned(),
            budget: budget.into(),
            measured: measured.into(),
            met,
            steps: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub fn with_steps(mut self, steps: Vec<Step>) -> Row {
        self.steps = steps;
        self
    }

    pub fn with_note(mut self, note: impl Into<String>) -> Row {
        self.notes.push(note.into());
        self
    }
}

/// Returns the table in Markdown.
pub fn markdown(rows: &[Row]) -> String {
    let mut text = String::new();
    let line = |text: &mut String, cells: [&str; 4]| {
        let _ = writeln!(text, "| {:<72} | {:>22} | {:>18} | {:<6} |", cells[0], cells[1], cells[2], cells[3]);
    };
    line(&mut text, ["measurement", "budget", "result", ""]);
    line(&mut text, ["---", "---", "---", "---"]);
    for row in rows {
        let result = match row.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        line(&mut text, [&row.name, &row.budget, &row.measured, result]);
    }
    for row in rows.iter().filter(|row| !row.steps.is_empty() || !row.notes.is_empty()) {
        let _ = writeln!(text, "\n{}:\n", row.name);
        let total: f64 = row.steps.iter().map(|step| step.seconds).sum();
        for Step { name, seconds } in &row.steps {
            let share = if total > 0.0 { 100.0 * seconds / total } else { 0.0 };
            let _ = writeln!(text, "- {seconds:7.3} s  {share:3.0} %  {name}");
        }
        for note in &row.notes {
            let _ = writeln!(text, "- {note}");
        }
    }
    text
}

/// Prints the report, and writes the report to a directory.
pub fn publish(rows: &[Row], folder: &Path) -> std::io::Result<()> {
    let text = markdown(rows);
    println!("\n{text}");
    std::fs::create_dir_all(folder)?;
    let file = folder.join("report.md");
    std::fs::write(&file, text)?;
    println!("report: {}", file.display());
    Ok(())
}

pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => numbers[middle],
        _ => f64::midpoint(numbers[middle - 1], numbers[middle]),
    }
}
