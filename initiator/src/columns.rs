//! Columns of text, as wide as what is in them.

/// Where text stands in its column.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Rows in columns: the first to the left, the others to a side.
pub(crate) fn columns(rows: &[impl AsRef<[String]>], side: Side) -> String {
    let mut widths = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.as_ref().len()), 0);
        for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match side {
            Side::Right if column > 0 => format!("{cell:>width$}"),
            _ => format!("{cell:width$}"),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(|row| line(row.as_ref())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows = [["a", "long"], ["bcd", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(columns(&rows, Side::Left), "a    long\nbcd  x\n");
        assert_eq!(columns(&rows, Side::Right), "a    long\nbcd     x\n");
        let uneven = [vec!["a".to_owned()], vec!["b".to_owned(), "c".to_owned()]];
        assert_eq!(columns(&uneven, Side::Left), "a\nb  c\n");
    }
}
