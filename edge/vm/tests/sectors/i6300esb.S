/* Starts Intel's PCI watchdog, which resets the machine some two seconds later. (Intel 6300ESB, 16.) */
#include "watchdog.h"
        .set    ADDRESS, 0xcf8
        .set    DATA, 0xcfc

/* Selects a register of the device %ebx, and leaves DATA in %dx. */
        .macro  select register
        leal    \register(%ebx), %eax
        movw    $ADDRESS, %dx
        outl    %eax, %dx
        movw    $DATA, %dx
        .endm

        .code16
start:  cli
        xorw    %ax, %ax
        movw    %ax, %ds
        movl    $0x80000000, %ebx
scan:   select  0
        inl     %dx, %eax
        cmpl    $0x25ab8086, %eax
        je      found
        addl    $0x800, %ebx
        jmp     scan
found:  select  0x10                    /* its registers in memory */
        inl     %dx, %eax
        andb    $0xf0, %al
        movl    %eax, %edi
        reach_all
        movl    $4, %esi                /* both timers */
1:      movl    $0x80, %fs:0xc(%edi)    /* unlock */
        movl    $0x86, %fs:0xc(%edi)
        movl    $0x400, %fs:(%edi, %esi) /* of about a millisecond */
        subw    $4, %si
        jns     1b
        select  0x60
        movw    $3, %ax                 /* the first timer's end interrupts nobody, the second's resets */
        outw    %ax, %dx
        select  0x68
        movb    $2, %al                 /* begin */
        outb    %al, %dx
        stand_still
