//! Rules that give roles to principals that Berth did not make: holders of certificates, and of tokens of OpenID issuers.

use serde_json::Value;

use super::{CertificateRule, Grant, principal::matches};

/// All rules of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Roles of holders of client certificates.
    pub certificates: Vec<CertificateRule>,
    /// Issuers of tokens, each with its own rules.
    pub issuers: Vec<IssuerRules>,
}

/// Issuer of JSON Web Tokens, and the roles of their holders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerRules {
    /// Address of the issuer: the claim `iss` of its tokens, letter for letter.
    pub url: String,
    /// First part of the names of its principals: `oidc` in `oidc:ada`.
    pub prefix: String,
    /// Audiences, one of which a token must be for.
    pub audiences: Vec<String>,
    /// Claim whose value, after the prefix, names the principal.
    pub principal: Claim,
    /// Roles by claims; a token gets every one that fits.
    pub roles: Vec<ClaimRule>,
}

impl IssuerRules {
    /// Grants of a token with these claims.
    #[must_use]
    pub fn grants(&self, claims: &Value) -> Vec<Grant> {
        let mut grants: Vec<Grant> = Vec::new();
        for rule in self.roles.iter().filter(|rule| rule.holds(claims)) {
            if !grants.contains(&rule.grant) {
                grants.push(rule.grant.clone());
            }
        }
        grants
    }
}

/// Role of the holders of tokens with certain claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRule {
    /// Claims that a token must have, all of them, each with a pattern. None: any token of the issuer.
    pub claims: Vec<(Claim, String)>,
    /// The role and where it holds.
    pub grant: Grant,
}

impl ClaimRule {
    fn holds(&self, claims: &Value) -> bool {
        self.claims.iter().all(|(claim, pattern)| claim.is(claims, pattern))
    }
}

/// Name of a claim, or with a `/` in front the path to one inside others: `/realm_access/roles`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim(pub String);

impl Claim {
    /// Value of the claim; `None`: the token lacks it.
    #[must_use]
    pub fn of<'a>(&self, claims: &'a Value) -> Option<&'a Value> {
        match self.0.starts_with('/') {
            true => claims.pointer(&self.0),
            false => claims.get(&self.0),
        }
    }

    /// True if the claim, or one of its values if it is a list, is like the pattern. `scope` is a list with spaces (RFC 8693).
    fn is(&self, claims: &Value, pattern: &str) -> bool {
        match self.of(claims) {
            Some(Value::Array(values)) => values.iter().any(|value| is_like(value, pattern)),
            Some(Value::String(words)) if self.0 == "scope" => words.split(' ').any(|word| matches(pattern, word)),
            Some(value) => is_like(value, pattern),
            None => false,
        }
    }
}

fn is_like(value: &Value, pattern: &str) -> bool {
    match value {
        Value::String(text) => matches(pattern, text),
        Value::Bool(_) | Value::Number(_) => matches(pattern, &value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_are_held_against_patterns() {
        let claims = json!({
            "sub": "repo:acme/models", "groups": ["ml", "ml-admins"], "email_verified": true, "scope": "openid berth",
            "realm_access": {"roles": ["viewer"]}, "https://example.org/team": "fraud", "level": 3, "nothing": null,
        });
        for (claim, pattern, holds) in [
            ("sub", "repo:acme/*", true),
            ("sub", "repo:acme", false),
            ("groups", "ml-admins", true),
            ("groups", "admins", false),
            ("email_verified", "true", true),
            ("scope", "berth", true),
            ("scope", "openid berth", false),
            ("/realm_access/roles", "viewer", true),
            ("realm_access/roles", "viewer", false),
            ("realm_access", "*", false),
            ("https://example.org/team", "fraud", true),
            ("level", "3", true),
            ("nothing", "*", false),
            ("none", "*", false),
        ] {
            assert_eq!(Claim(claim.to_owned()).is(&claims, pattern), holds, "{claim} {pattern}");
        }
    }
}
