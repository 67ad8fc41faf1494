//! Finds dependency cycles.

use std::collections::{HashMap, HashSet};

use crate::runtime::backoff::ObjectKey;

/// Returns the shortest path from a Stack through its dependencies back to itself. `needs` passes namespace and name of each dependency of
/// a Stack to its second argument. Runs in linear time: each Stack is visited once, and its name is copied only on that visit.
pub fn find(of: &ObjectKey, needs: impl Fn(&ObjectKey, &mut dyn FnMut(&str, &str))) -> Option<Vec<ObjectKey>> {
    let mut visited: HashMap<String, HashSet<String>> = HashMap::new();
    // All visited Stacks, each with the position of its predecessor.
    let mut reached: Vec<(ObjectKey, usize)> = vec![(of.clone(), 0)];
    let mut position = 0;
    while let Some((at, _)) = reached.get(position).cloned() {
        let mut is_closed = false;
        needs(&at, &mut |namespace, name| {
            is_closed |= namespace == of.0 && name == of.1;
            if !visited.get(namespace).is_some_and(|names| names.contains(name)) {
                visited.entry(namespace.to_owned()).or_default().insert(name.to_owned());
                reached.push(((namespace.to_owned(), name.to_owned()), position));
            }
        });
        if is_closed {
            return Some(path(of, &reached, position));
        }
        position += 1;
    }
    None
}

/// Returns the path from the start to the Stack at this position and back to the start.
fn path(of: &ObjectKey, reached: &[(ObjectKey, usize)], mut position: usize) -> Vec<ObjectKey> {
    let mut path = vec![of.clone()];
    while let Some((key, from)) = reached.get(position).filter(|_| position > 0) {
        path.push(key.clone());
        position = *from;
    }
    path.push(of.clone());
    path.reverse();
    path
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn key(name: impl ToString) -> ObjectKey {
        ("apps".to_owned(), name.to_string())
    }

    fn find_in(edges: &HashMap<ObjectKey, Vec<ObjectKey>>, of: &ObjectKey) -> Option<Vec<ObjectKey>> {
        find(of, |at, reach| edges.get(at).into_iter().flatten().for_each(|(namespace, name)| reach(namespace, name)))
    }

    #[test]
    fn a_cycle_is_found_only_from_its_own_stacks() {
        let edges: [(&str, &[&str], Option<&str>); 8] = [
            ("a", &["x", "b"], Some("a b c a")),
            ("b", &["c"], Some("b c a b")),
            ("c", &["a", "a"], Some("c a b c")),
            ("self", &["x", "self"], Some("self self")),
            ("before", &["a"], None),
            ("x", &["y"], None),
            ("diamond", &["x", "y"], None),
            ("long", &["l1", "l3"], Some("long l3 long")),
        ];
        let mut all: HashMap<_, _> =
            [("l1", "l2"), ("l2", "l3"), ("l3", "long")].map(|(of, needed)| (key(of), vec![key(needed)])).into();
        all.extend(edges.iter().map(|(of, needs, _)| (key(of), needs.iter().map(key).collect())));
        for (of, _, wanted) in edges {
            let found = find_in(&all, &key(of));
            let found = found.map(|path| path.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(" "));
            assert_eq!(found.as_deref(), wanted, "{of}");
        }
        assert_eq!(find_in(&all, &key("unknown")), None);
    }

    #[test]
    fn cycle_detection_visits_each_stack_once() {
        const STACKS: usize = 10_000;
        for width in [1, 100] {
            let needs = |number: usize| (number + 1..=number + width).filter(|next| *next < STACKS).map(key).collect();
            let mut edges: HashMap<ObjectKey, Vec<ObjectKey>> =
                (0..STACKS).map(|number| (key(number), needs(number))).collect();
            let visits = Cell::new(0);
            let walk = |edges: &HashMap<ObjectKey, Vec<ObjectKey>>| {
                find(&key(0), |at, reach| {
                    visits.set(visits.get() + 1);
                    edges.get(at).into_iter().flatten().for_each(|(namespace, name)| reach(namespace, name));
                })
            };
            assert_eq!(walk(&edges), None);
            assert_eq!(visits.replace(0), STACKS);
            edges.insert(key(STACKS - 1), vec![key(0)]);
            let path = walk(&edges).expect("the last one closes the cycle");
            assert_eq!(visits.get(), STACKS);
            assert_eq!((path.first(), path.last()), (Some(&key(0)), Some(&key(0))));
            assert_eq!(path.len(), (STACKS - 1).div_ceil(width) + 2, "it is the shortest path");
        }
    }
}
