/* For sectors that read the drive that they were booted from, through the firmware. They define BUFFER. */

/* Sets the segments and the stack up, and keeps the firmware's number of the drive. Interrupts stay off. */
        .macro  begin
        cli
        xorw    %ax, %ax
        movw    %ax, %ds
        movw    %ax, %ss
        movw    $start, %sp
        movb    %dl, drive
        .endm

/* Reads the sector whose number is at sector to BUFFER. */
        .macro  read_sector
        movb    drive, %dl
        movw    $packet, %si
        movb    $0x42, %ah              /* read sectors, by a packet */
        int     $0x13
        .endm

        .macro  variables first
drive:  .byte   0
packet: .byte   16, 0
        .word   1, BUFFER, 0            /* sectors; to */
sector: .quad   \first
        .endm
