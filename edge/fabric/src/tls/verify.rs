//! The keys that the two sides of a connection show and accept.

use crate::keys::{Holder, Keys, PublicKey};
use plover_types::ReplicaId;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerMisbehaved, ServerConfig, SignatureScheme,
};
use std::sync::{Arc, OnceLock};

/// The algorithms. AES-128 first: it is what processors are fastest at.
fn provider() -> &'static Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| {
        Arc::new(CryptoProvider {
            cipher_suites: vec![
                TLS13_AES_128_GCM_SHA256,
                TLS13_AES_256_GCM_SHA384,
                TLS13_CHACHA20_POLY1305_SHA256,
            ],
            ..rustls::crypto::ring::default_provider()
        })
    })
}

impl Keys {
    fn certified(&self) -> Arc<CertifiedKey> {
        let private = PrivatePkcs8KeyDer::from(self.own.to_pkcs8());
        let key = rustls::crypto::ring::sign::any_eddsa_type(&private);
        let key = key.expect("the form of our own key is right");
        Arc::new(CertifiedKey::new(vec![self.public().to_spki().into()], key))
    }

    /// How to dial the `expected` holder of a key.
    pub(crate) fn client(self: &Arc<Self>, expected: Expected) -> Arc<ClientConfig> {
        let keys = self.clone();
        let verifier = Arc::new(Verifier { keys, expected });
        let resolver = AlwaysResolvesClientRawPublicKeys::new(self.certified());
        let builder = ClientConfig::builder_with_provider(provider().clone());
        let mut config = builder
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has suites of TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::new(resolver));
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Arc::new(config)
    }

    /// How to answer the `expected` holder of a key.
    pub(crate) fn server(self: &Arc<Self>, expected: Expected) -> Arc<ServerConfig> {
        let keys = self.clone();
        let verifier = Arc::new(Verifier { keys, expected });
        let resolver = AlwaysResolvesServerRawPublicKeys::new(self.certified());
        let builder = ServerConfig::builder_with_provider(provider().clone());
        let mut config = builder
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has suites of TLS 1.3")
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(resolver));
        config.send_tls13_tickets = 0;
        Arc::new(config)
    }
}

/// Compares the other side's key with those that are trusted.
#[derive(Debug)]
struct Verifier {
    keys: Arc<Keys>,
    expected: Expected,
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// The replica that was dialled.
    Replica(ReplicaId),
    /// Any replica: the one that listens knows the other by its greeting, and a client of a log takes each.
    AnyReplica,
    /// A client of a log.
    Client,
}

impl Expected {
    fn is(self, holder: Holder) -> bool {
        match self {
            Self::Replica(peer) => holder == Holder::Replica(peer),
            Self::AnyReplica => matches!(holder, Holder::Replica(_)),
            Self::Client => matches!(holder, Holder::Client | Holder::Admin),
        }
    }
}

/// The other side shows a key that is not trusted.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Untrusted(String);

impl Verifier {
    fn verify(&self, spki: &[u8]) -> Result<(), Error> {
        let untrusted = |words: String| {
            let error = OtherError(Arc::new(Untrusted(words)));
            Error::InvalidCertificate(CertificateError::Other(error))
        };
        let key = PublicKey::from_spki(spki);
        let key = key.ok_or_else(|| untrusted("it shows no Ed25519 key".into()))?;
        let holders = self.keys.holders_of(key);
        if holders.iter().any(|holder| self.expected.is(*holder)) {
            return Ok(());
        }
        match (self.expected, &holders[..]) {
            (Expected::Replica(_), [Holder::Replica(other), ..]) => Err(untrusted(format!(
                "it shows the key of {other}: compare the addresses of `group.replica`, and each host's key"
            ))),
            (Expected::Client, _) => Err(untrusted(format!(
                "it shows the key {key}, which is trusted neither as a client's nor as an administrator's; if it is \
                 the right one, run `plover key trust FILE client {key}`"
            ))),
            _ => Err(untrusted(format!(
                "it shows the key {key}, which is not trusted; if it is the right one, run `plover key trust`"
            ))),
        }
    }

    fn verify_signature(
        message: &[u8],
        spki: &[u8],
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let spki = SubjectPublicKeyInfoDer::from(spki);
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &spki, dss, algorithms)
    }
}

const NO_TLS_12: Error = Error::PeerMisbehaved(PeerMisbehaved::SelectedUnofferedCipherSuite);

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(key).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(NO_TLS_12)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::verify_signature(message, key, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(key).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(NO_TLS_12)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::verify_signature(message, key, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
