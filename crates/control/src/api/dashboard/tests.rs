//! The files keep to the policy that is sent with them.

use super::*;

#[test]
fn files_load_only_files_that_are_there_and_make_no_markup_of_text() {
    for (name, media_type, content) in FILES {
        for banned in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "http:",
            "https:",
            "localStorage.token",
        ] {
            // The name of a namespace is no request.
            let content = content.replace("http://www.w3.org/2000/svg", "");
            assert!(!content.contains(banned), "{name} has {banned}");
        }
        if media_type == SCRIPT {
            let imported = content.lines().filter_map(|line| line.split_once(" from \"./")?.1.strip_suffix("\";"));
            for import in imported {
                assert!(
                    FILES.iter().any(|(known, ..)| *known == import),
                    "{name} imports {import}, which is not there"
                );
            }
        }
        if media_type == HTML {
            assert!(!content.contains("style=") && !content.contains("<style"), "the policy refuses inline styles");
            assert_eq!(content.matches("<script").count(), content.matches("<script type=\"module\" src=").count());
        }
    }
}

#[test]
fn paths() {
    for known in ["/dashboard", "/dashboard/", "/dashboard/app.js"] {
        assert!(answer(known).is_some(), "{known}");
    }
    for unknown in ["/", "/dashboards", "/dashboard/../metrics", "/dashboard/app", "/v1/dashboard/models"] {
        assert!(answer(unknown).is_none(), "{unknown}");
    }
}

#[test]
fn every_file_is_sent_with_the_policy() {
    for (name, media_type, _) in FILES {
        let response = file(name).expect("it is there");
        let header = |name| response.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        assert_eq!(header(header::CONTENT_TYPE), Some(media_type));
        assert!(header(header::CONTENT_SECURITY_POLICY).is_some_and(|policy| policy.contains("default-src 'none'")));
    }
}
