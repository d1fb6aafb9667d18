//! A viewer of a display, as simple as the protocol of VNC allows (RFC 6143).

use std::io::{Read, Result, Write};

/// A connection to a VNC server that asks for no password.
pub struct Viewer<S> {
    server: S,
    width: u16,
    height: u16,
}

impl<S: Read + Write> Viewer<S> {
    /// Says hello.
    pub fn new(mut server: S) -> Result<Self> {
        let version: [u8; 12] = read(&mut server)?;
        assert_eq!(&version, b"RFB 003.008\n");
        server.write_all(&version)?;
        let [kinds] = read(&mut server)?;
        assert_ne!(kinds, 0, "the server refuses");
        let mut offered = vec![0; kinds.into()];
        server.read_exact(&mut offered)?;
        assert_eq!(offered, [1], "no authentication");
        server.write_all(&[1])?;
        assert_eq!(read(&mut server)?, [0; 4]);
        server.write_all(&[1])?; // Others may look, too.
        let [w, x, h, y] = read(&mut server)?;
        let _pixels: [u8; 16] = read(&mut server)?;
        let name = u32::from_be_bytes(read(&mut server)?);
        server.read_exact(&mut vec![0; name as usize])?;
        Ok(Self {
            server,
            width: u16::from_be_bytes([w, x]),
            height: u16::from_be_bytes([h, y]),
        })
    }

    /// The whole picture, four bytes a point.
    pub fn picture(&mut self) -> Result<Vec<u8>> {
        let line = usize::from(self.width) * 4;
        let mut picture = vec![0; line * usize::from(self.height)];
        let [[w, x], [h, y]] = [self.width, self.height].map(u16::to_be_bytes);
        self.server.write_all(&[3, 0, 0, 0, 0, 0, w, x, h, y])?;
        let mut drawn = 0;
        while drawn < picture.len() {
            let [kind] = read(&mut self.server)?;
            assert_eq!(kind, 0, "an update of the picture");
            let [_, n, m] = read(&mut self.server)?;
            for _ in 0..u16::from_be_bytes([n, m]) {
                let [a, b, c, d, e, f, g, h]: [u8; 8] = read(&mut self.server)?;
                let [x, y, width, height] =
                    [[a, b], [c, d], [e, f], [g, h]].map(|it| u16::from_be_bytes(it) as usize);
                assert_eq!(read(&mut self.server)?, [0; 4], "points as they are");
                for row in y..y + height {
                    let at = row * line + x * 4;
                    self.server.read_exact(&mut picture[at..at + width * 4])?;
                }
                drawn += width * height * 4;
            }
        }
        Ok(picture)
    }

    /// Presses a key and lets it go, by its number (`keysym`).
    pub fn press(&mut self, key: u32) -> Result<()> {
        for down in [1, 0] {
            let mut event = vec![4, down, 0, 0];
            event.extend(key.to_be_bytes());
            self.server.write_all(&event)?;
        }
        Ok(())
    }
}

fn read<const N: usize>(from: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}
