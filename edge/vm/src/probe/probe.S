/*
 * The KVM probe: 64 KiB of firmware that does what every Linux kernel does first, and says so.
 *
 * /dev/kvm that opens is no promise: where KVM is itself emulated (some nested clouds), or lacks
 * parts of the processor, a guest kernel hangs or crawls a thousand times too slowly. This goes
 * from the reset vector through protected mode into long mode (paging, a model-specific register
 * write), uses SSE, reloads CR3, takes an exception, and then runs ten million rounds of a loop,
 * which take some 10 ms on a processor and many seconds in an emulator. Then it writes to QEMU's
 * isa-debug-exit device, and QEMU exits with a status nothing else gives (see accel.rs).
 *
 * Linked flat at 0 and mapped at ROM, the last 64 KiB below 4 GiB.
 */
        .set    ROM, 0xffff0000
        .set    PML4, 0x1000            /* page tables in RAM, which is zero at power-on */
        .set    PDPT, 0x2000
        .set    PD_LOW, 0x3000          /* maps 0..2 MiB */
        .set    PD_HIGH, 0x4000         /* maps the ROM */
        .set    IDT, 0x5000
        .set    STACK, 0x8000
        .set    COUNTER, 0x9000
        .set    ROUNDS, 10000000
        .set    EXIT_PORT, 0xf4
        .set    EXIT_VALUE, 0x2a

        .text
        .code16
start:  cli
        lgdtl   %cs:gdt_pointer
        movl    %cr0, %eax
        orl     $1, %eax                /* protection */
        movl    %eax, %cr0
        ljmpl   $8, $(ROM + protected)

        .code32
protected:
        movw    $16, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
        movl    $STACK, %esp
        movl    $(PDPT + 3), PML4
        movl    $(PD_LOW + 3), PDPT
        movl    $(PD_HIGH + 3), PDPT + 3 * 8
        movl    $0x83, PD_LOW
        movl    $0xffe00083, PD_HIGH + 511 * 8
        movl    %cr4, %eax
        orl     $0x620, %eax            /* PAE, OSFXSR, OSXMMEXCPT */
        movl    %eax, %cr4
        movl    $PML4, %eax
        movl    %eax, %cr3
        movl    $0xc0000080, %ecx       /* EFER.LME */
        rdmsr
        orl     $0x100, %eax
        wrmsr
        movl    %cr0, %eax
        andl    $~4, %eax               /* no emulation of the FPU */
        orl     $0x80000002, %eax       /* paging */
        movl    %eax, %cr0
        ljmp    $24, $(ROM + long)

        .code64
long:   xorl    %eax, %eax              /* an interrupt gate for #BP (vector 3) */
        movw    $trapped, IDT + 3 * 16
        movw    $24, IDT + 3 * 16 + 2
        movw    $0x8e00, IDT + 3 * 16 + 4
        movw    $(ROM >> 16), IDT + 3 * 16 + 6
        movl    $(ROM + idt_pointer), %eax
        lidt    (%rax)
        int3
        cmpl    $1, COUNTER
        jne     stop

        movl    $100, %ecx
1:      movq    %cr3, %rax
        movq    %rax, %cr3
        decl    %ecx
        jnz     1b

        movl    $ROUNDS, %ecx
        movq    %rcx, %xmm0
        pxor    %xmm1, %xmm1
        paddq   %xmm0, %xmm1
2:      incl    COUNTER
        decl    %ecx
        jnz     2b
        movq    %xmm1, %rax
        incq    %rax
        cmpl    %eax, COUNTER
        jne     stop

        movb    $EXIT_VALUE, %al
        outb    %al, $EXIT_PORT
stop:   hlt
        jmp     stop

trapped:
        incl    COUNTER
        iretq

        .balign 8
gdt:    .quad   0
        .quad   0x00cf9b000000ffff      /* 8: 32-bit code */
        .quad   0x00cf93000000ffff      /* 16: data */
        .quad   0x00af9b000000ffff      /* 24: 64-bit code */
gdt_pointer:
        .word   . - gdt - 1
        .long   ROM + gdt
idt_pointer:
        .word   4 * 16 - 1
        .quad   IDT

        .org    0xfff0, 0x90
        .code16
        jmp     start
        .org    0x10000, 0x90
