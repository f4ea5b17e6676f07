//! Policies against an oracle that knows nothing but bits and letters.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use egress_policy::{Policy, Rule};
use proptest::prelude::*;

/// A rule as the oracle knows it.
#[derive(Clone, Debug)]
struct Plain {
    subject: Who,
    ports: Option<(u16, u16)>,
}

#[derive(Clone, Debug)]
enum Who {
    Any,
    /// IPv4 in the IPv6 form, so that one comparison of bits does for both.
    Net(u128, u32, bool),
    Name(String),
    Below(String),
}

impl Plain {
    fn text(&self) -> String {
        let ports = self
            .ports
            .map_or(String::new(), |(first, last)| format!(":{first}-{last}"));
        match &self.subject {
            Who::Any => format!("*{ports}"),
            Who::Name(name) => format!("{name}{ports}"),
            Who::Below(name) => format!(".{name}{ports}"),
            Who::Net(bits, prefix, true) => {
                let [.., a, b, c, d] = bits.to_be_bytes();
                let v4 = Ipv4Addr::new(a, b, c, d);
                format!("{v4}/{}{ports}", prefix - 96)
            }
            Who::Net(bits, prefix, false) => {
                format!("[{}/{prefix}]{ports}", Ipv6Addr::from_bits(*bits))
            }
        }
    }

    fn has_port(&self, port: u16) -> bool {
        self.ports
            .is_none_or(|(first, last)| first <= port && port <= last)
    }

    fn has_name(&self, name: &str, port: u16) -> bool {
        self.has_port(port)
            && match &self.subject {
                Who::Any => true,
                Who::Net(..) => false,
                Who::Name(own) => own.eq_ignore_ascii_case(name),
                Who::Below(own) => name
                    .to_ascii_lowercase()
                    .strip_suffix(&own.to_ascii_lowercase())
                    .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            }
    }

    fn has_address(&self, bits: u128, port: u16) -> bool {
        self.has_port(port)
            && match &self.subject {
                Who::Any => true,
                Who::Net(net, prefix, is_v4) => {
                    let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
                    is_mapped(bits) == *is_v4 && bits & mask == net & mask
                }
                Who::Name(_) | Who::Below(_) => false,
            }
    }
}

fn is_mapped(bits: u128) -> bool {
    bits >> 32 == 0xffff
}

/// The whole policy, a sentence a line.
fn expected(allow: &[Plain], deny: &[Plain], name: Option<&str>, bits: u128, port: u16) -> bool {
    let name_in =
        |rules: &[Plain]| name.is_some_and(|name| rules.iter().any(|r| r.has_name(name, port)));
    let address_in = |rules: &[Plain]| rules.iter().any(|r| r.has_address(bits, port));
    if name_in(deny) || address_in(deny) {
        return false;
    }
    if allow.is_empty() || address_in(allow) {
        return true;
    }
    name_in(allow) && !is_own(bits)
}

fn is_own(bits: u128) -> bool {
    if is_mapped(bits) {
        let [.., a, b, _, _] = bits.to_be_bytes();
        return a == 127
            || (a, b) == (169, 254)
            || (224..240).contains(&a)
            || bits & 0xffff_ffff == 0xffff_ffff;
    }
    bits == 1 || bits >> 118 == 0xfe80 >> 6 || bits >> 120 == 0xff
}

/// Few bits and few letters, so that rules and targets meet.
fn v4_bits() -> impl Strategy<Value = u128> {
    prop_oneof![
        Just(0x7f00_0001),
        Just(0xa9fe_a9fe),
        0x0a00_0000_u32..0x0a00_0008,
        any::<u32>()
    ]
    .prop_filter("0.0.0.0 is another address", |bits| *bits != 0)
    .prop_map(|bits| Ipv4Addr::from_bits(bits).to_ipv6_mapped().to_bits())
}

fn v6_bits() -> impl Strategy<Value = u128> {
    let fd = 0xfd00_u128 << 112;
    prop_oneof![
        Just(1),
        Just((0xfe80 << 112) + 1),
        fd..fd + 8,
        any::<u128>()
    ]
    .prop_filter("not an address of IPv4, not ::", |bits| {
        *bits != 0 && !is_mapped(*bits)
    })
}

fn name() -> impl Strategy<Value = String> {
    "[abAB]{1,2}(\\.[abAB]){0,3}"
}

fn rule() -> impl Strategy<Value = Plain> {
    let cut = |bits: u128, prefix: u32| bits & u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
    let subject = prop_oneof![
        1 => Just(Who::Any),
        3 => (v4_bits(), 96_u32..=128).prop_map(move |(bits, prefix)| Who::Net(cut(bits, prefix), prefix, true)),
        3 => (v6_bits(), 0_u32..=128).prop_map(move |(bits, prefix)| Who::Net(cut(bits, prefix), prefix, false)),
        2 => name().prop_map(Who::Name),
        2 => name().prop_map(Who::Below),
    ];
    let ports =
        proptest::option::of((1_u16..6, 0_u16..4).prop_map(|(first, more)| (first, first + more)));
    (subject, ports).prop_map(|(subject, ports)| Plain { subject, ports })
}

fn rules() -> impl Strategy<Value = Vec<Plain>> {
    proptest::collection::vec(rule(), 0..5)
}

fn address(bits: u128, keep_mapped: bool, port: u16) -> SocketAddr {
    let v6 = Ipv6Addr::from_bits(bits);
    match v6.to_ipv4_mapped() {
        Some(v4) if !keep_mapped => SocketAddr::new(IpAddr::V4(v4), port),
        _ => SocketAddr::new(IpAddr::V6(v6), port),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_policy_says_what_the_oracle_says(
        allow in rules(),
        deny in rules(),
        name in proptest::option::of(name()),
        bits in prop_oneof![v4_bits(), v6_bits()],
        keep_mapped in any::<bool>(),
        port in 1_u16..9,
    ) {
        let text = |rules: &[Plain]| rules.iter().map(Plain::text).collect::<Vec<_>>();
        let policy = Policy::parse(&text(&allow), &text(&deny)).unwrap();
        let address = address(bits, keep_mapped, port);
        let host = name.clone().unwrap_or_else(|| address.ip().to_string());
        let said = policy
            .check_host(&host, port)
            .and_then(|clearance| policy.check_address(clearance, &host, address));
        prop_assert_eq!(
            said.is_ok(),
            expected(&allow, &deny, name.as_deref(), bits, port),
            "{} {:?} {}", policy, said, host
        );
    }

    #[test]
    fn a_rule_written_out_is_the_same_rule(plain in rule()) {
        let rule: Rule = plain.text().parse().unwrap();
        prop_assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
    }

    #[test]
    fn no_text_panics_and_what_passes_unresolved_passes_before_its_lookup(text in "\\PC{0,40}|[0-9a-f:.\\[\\]/%*x-]{0,30}", host in "\\PC{0,40}|[0-9a-fx.:%\\[\\]]{0,20}") {
        if let Ok(policy) = Policy::parse(&[&text], &[]) {
            let unresolved = policy.check_unresolved(&host, 1).is_ok();
            prop_assert!(!unresolved || policy.check_host(&host, 1).is_ok());
        }
    }
}
