//! The programs of the APUS report, as Debian has them.

pub mod clamav;
pub mod gerbera;
pub mod mariadb;
pub mod memcached;
pub mod nginx;
pub mod openldap;
pub mod redis;
