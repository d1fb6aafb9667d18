/* Boots from a CD, and then reads its 20th sector again and again, and prints the text in it on the first serial port. */
#include "drive.h"
        .set    BUFFER, 0x8000

        .code16
start:  begin
        sti
again:  read_sector
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
        variables first=20
