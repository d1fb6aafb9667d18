/* Draws the whole screen in one colour, prints "drawn" on the first serial port, waits for a key, and draws the next colour. */
        .code16
start:  xorw    %ax, %ax
        movw    %ax, %ds
        movw    %ax, %ss
        movw    $start, %sp
        movw    $0x13, %ax              /* 320 by 200 points of a byte */
        int     $0x10
        movw    $0xa000, %ax
        movw    %ax, %es
        cld
again:  incb    colour
        movb    colour, %al
        xorw    %di, %di
        movw    $64000, %cx
        rep stosb
        movw    $text, %si
next:   lodsb
        testb   %al, %al
        jz      wait
        movw    $0x3f8, %dx
        outb    %al, %dx
        jmp     next
wait:   xorw    %ax, %ax                /* until a key is pressed */
        int     $0x16
        jmp     again
colour: .byte   0
text:   .asciz  "drawn\n"
