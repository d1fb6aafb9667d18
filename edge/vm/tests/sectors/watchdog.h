/* The ends of boot sectors that start a watchdog. */

/* From here on %fs reaches 4 GiB. */
        .macro  reach_all
        lgdtl   gdt_pointer
        movl    %cr0, %eax
        orb     $1, %al                 /* protection */
        movl    %eax, %cr0
        movw    $8, %cx
        movw    %cx, %fs
        andb    $0xfe, %al
        movl    %eax, %cr0
        .endm

/* Prints "armed" on the first serial port, and then does nothing. */
        .macro  stand_still
        movw    $text, %si
1:      lodsb
        movw    $0x3f8, %dx
        outb    %al, %dx
        testb   %al, %al
        jnz     1b
2:      jmp     2b
text:   .asciz  "armed\n"
gdt:    .quad   0, 0x00cf92000000ffff
gdt_pointer:
        .word   15
        .long   gdt
        .endm
