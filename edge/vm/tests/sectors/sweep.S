/* Reads sectors 0 to 127 of the disk that it was booted from, again and again, and counts them at 0x9000. An AHCI controller
 * (Intel ICH9's) has its received FIS area on a page that nothing else writes. (AHCI 1.3.1, 3.3, 10.3.) */
#include "drive.h"
        .set    BUFFER, 0x8000
        .set    COUNT, 0x9000
        .set    FIS, 0x20000
        .set    ADDRESS, 0xcf8
        .set    DATA, 0xcfc
        .set    AHCI, 0x8000fa00        /* 00:1f.2 */
        .set    PORT, 0x100
        .set    FB, 0x08
        .set    CMD, 0x18
        .set    ST, 1 << 0
        .set    FRE, 1 << 4
        .set    FR, 1 << 14
        .set    CR, 1 << 15

        .code16
start:  begin
        movl    $0, COUNT
        movw    $ADDRESS, %dx
        movl    $AHCI, %eax
        outl    %eax, %dx
        movw    $DATA, %dx
        inl     %dx, %eax
        cmpl    $0x29228086, %eax
        jne     sweep

        lgdt    limits                  /* %fs reaches all memory in real mode, too */
        movl    %cr0, %eax
        orb     $1, %al
        movl    %eax, %cr0
        movw    $8, %bx
        movw    %bx, %fs
        andb    $~1, %al
        movl    %eax, %cr0
        movw    $ADDRESS, %dx
        movl    $AHCI + 0x24, %eax
        outl    %eax, %dx
        movw    $DATA, %dx
        inl     %dx, %eax
        andb    $0xf0, %al
        leal    PORT(%eax), %ebx        /* the registers of port 0 */
        movl    %fs:CMD(%ebx), %ecx
        andl    $~ST, %ecx
        movl    %ecx, %fs:CMD(%ebx)
runs:   testl   $CR, %fs:CMD(%ebx)
        jnz     runs
        andl    $~FRE, %ecx
        movl    %ecx, %fs:CMD(%ebx)
stops:  testl   $FR, %fs:CMD(%ebx)
        jnz     stops
        movl    $FIS, %fs:FB(%ebx)
        orl     $FRE, %ecx
        movl    %ecx, %fs:CMD(%ebx)
        orl     $ST, %ecx
        movl    %ecx, %fs:CMD(%ebx)

sweep:  sti
again:  read_sector
        incl    COUNT
        movb    COUNT, %al
        andb    $127, %al
        movb    %al, sector
        jmp     again
        variables first=0
        .align  8
table:  .quad   0, 0x00cf92000000ffff   /* data, 4 GiB */
limits: .word   limits - table - 1
        .long   table
