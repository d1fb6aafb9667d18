/* Boots from a CD, and then reads its 20th sector again and again, and prints the text in it on the first serial port. */
        .set    BUFFER, 0x8000

        .code16
start:  cli
        xorw    %ax, %ax
        movw    %ax, %ds
        movw    %ax, %ss
        movw    $start, %sp
        movb    %dl, drive              /* the firmware's number of the drive */
        sti
again:  movb    drive, %dl
        movw    $packet, %si
        movb    $0x42, %ah              /* read sectors, by a packet */
        int     $0x13
        jc      again
        movw    $BUFFER, %si
next:   lodsb
        testb   %al, %al
        jz      read
        movw    $0x3f8, %dx
        outb    %al, %dx
        jmp     next
read:   movb    $0, BUFFER              /* so that nothing is printed that was not read anew */
        jmp     again
drive:  .byte   0
packet: .byte   16, 0
        .word   1, BUFFER, 0            /* sectors; to */
        .quad   20
