//! The live view on the whole terminal.
//!
//! ```text
//! looking ──answer──▶ drawn ──interval──▶ looking      q, Esc, Ctrl-C ──▶ left, terminal restored
//!                       └─ arrows: scrolled, drawn again
//! ```

use std::time::Duration;

use berth_wire::api::TopView;
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Color, Style, Stylize},
    text::Line,
    widgets::{Row, Table, TableState},
};
use tokio::{sync::mpsc, time::MissedTickBehavior};

use super::{HEADS, Models, cells, summary};
use crate::{failure::Failure, terminal};

/// Keys buffered while the screen is drawn. More than anybody types.
const KEYS: usize = 16;

/// Poll interval of the key reader. Short, so that leaving feels immediate.
const POLL: Duration = Duration::from_millis(100);

/// Shows it until somebody leaves.
pub(super) async fn run(models: Models, first: TopView, interval: Duration) -> Result<(), Failure> {
    let mut screen = ratatui::try_init()?;
    let shown = Screen { view: first, problem: None, rows: TableState::default().with_selected(0) };
    let done = show(&mut screen, shown, &models, interval).await;
    ratatui::restore();
    done
}

/// Widths of the columns. Names get the remaining width.
const WIDTHS: [u16; HEADS.len()] = [20, 14, 6, 9, 9, 7, 7, 7, 10, 10, 10];

/// Columns dropped on a narrow terminal, in this order: P50, P90, MISS/S, IN FLIGHT.
const DROPPED_COLUMNS: [usize; 4] = [8, 9, 7, 4];

/// The columns that have room.
fn columns(width: u16) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..HEADS.len()).collect();
    for left_out in DROPPED_COLUMNS {
        let taken: u16 = shown.iter().map(|&column| WIDTHS[column] + 1).sum();
        if taken <= width + 1 {
            break;
        }
        shown.retain(|&column| column != left_out);
    }
    shown
}

struct Screen {
    view: TopView,
    /// Error of the last refresh; the view is then outdated.
    problem: Option<String>,
    rows: TableState,
}

async fn show(
    terminal: &mut DefaultTerminal,
    mut screen: Screen,
    models: &Models,
    interval: Duration,
) -> Result<(), Failure> {
    let (pressed, mut keys) = mpsc::channel(KEYS);
    // Reading keys blocks; the thread ends when `keys` is dropped.
    std::thread::spawn(move || read_keys(&pressed));
    let mut ticks = tokio::time::interval(interval.max(POLL));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        tokio::select! {
            key = keys.recv() => match key {
                Some(Key::Up) => screen.rows.select_previous(),
                Some(Key::Down) => screen.rows.select_next(),
                Some(Key::Other) => {}
                Some(Key::Leave) | None => return Ok(()),
            },
            _ = ticks.tick() => match models.look().await {
                Ok(view) => (screen.view, screen.problem) = (view, None),
                Err(failure) => screen.problem = Some(failure.to_string()),
            },
        }
    }
}

enum Key {
    Up,
    Down,
    Leave,
    /// The terminal changed its size, for one.
    Other,
}

fn read_keys(pressed: &mpsc::Sender<Key>) {
    while !pressed.is_closed() {
        match event::poll(POLL) {
            Ok(false) => continue,
            Ok(true) => {}
            Err(_) => return,
        }
        let key = match event::read() {
            Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => match key.code {
                KeyCode::Char('q') | KeyCode::Esc => Key::Leave,
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Leave,
                KeyCode::Up | KeyCode::Char('k') => Key::Up,
                KeyCode::Down | KeyCode::Char('j') => Key::Down,
                _ => continue,
            },
            Ok(Event::Resize(..)) => Key::Other,
            Ok(_) => continue,
            Err(_) => return,
        };
        if pressed.blocking_send(key).is_err() {
            return;
        }
    }
}

impl Screen {
    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(Line::from(summary(&self.view)).bold(), head);
        let columns = columns(body.width);
        let rows = self.view.models.iter().map(|model| {
            let cells = cells(model);
            let row = Row::new(columns.iter().map(|&column| cells[column].clone()));
            match (terminal::colours(), model.failures_per_second > 0.0, model.in_flight > 0) {
                (true, true, _) => row.style(Style::new().fg(Color::Red)),
                (true, false, true) => row.style(Style::new().fg(Color::Green)),
                _ => row,
            }
        });
        // What is over goes to the names.
        let width = |&column: &usize| match column {
            0 => Constraint::Min(WIDTHS[0]),
            _ => Constraint::Length(WIDTHS[column]),
        };
        let table = Table::new(rows, columns.iter().map(width))
            .header(Row::new(columns.iter().map(|&column| HEADS[column])).style(Style::new().bold()))
            .row_highlight_style(Style::new().reversed());
        frame.render_stateful_widget(table, body, &mut self.rows);
        let note = self.problem.as_deref().unwrap_or("q leaves, arrows scroll");
        frame.render_widget(Line::from(note.to_owned()).dim(), foot);
    }
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;

    #[test]
    fn names_are_seen_on_narrow_terminals() {
        let view: TopView = serde_json::from_value(serde_json::json!({
            "apiVersion": "berth.dev/v1", "kind": "Top", "at": "2026-11-18T00:00:00.000Z", "windowMs": 9_000,
            "gateways": 1, "memory": {"total": 0, "used": 0, "free": 0},
            "models": [{"deployment": "sentiment-prod-euwest", "phase": "ScheduleFailed", "inFlight": 7}]
        }))
        .expect("a view");
        for (width, heads) in [
            (80, "PHASE          READY  MEMORY    REQ/S   FAIL/S  P99"),
            (200, "PHASE          READY  MEMORY    IN FLIGHT REQ/S   FAIL/S  MISS/S  P50        P90        P99"),
        ] {
            let mut terminal = Terminal::new(TestBackend::new(width, 6)).expect("a terminal");
            let mut screen = Screen { view: view.clone(), problem: None, rows: TableState::default() };
            terminal.draw(|frame| screen.draw(frame)).expect("drawn");
            let shown = terminal.backend().to_string();
            assert!(shown.contains(heads), "{shown}");
            assert!(shown.contains("sentiment-prod-euwe") && shown.contains("ScheduleFailed"), "{shown}");
        }
    }
}
