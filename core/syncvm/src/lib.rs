//! The syncvm exchange: hash lists, comparing, transfer plan, staging, debt.
