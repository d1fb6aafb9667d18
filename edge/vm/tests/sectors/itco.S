/* Starts the watchdog of q35's chip set, which resets the machine some five seconds later. (Intel 82801I, 10.1.75 and 13.9.) */
#include "watchdog.h"
        .set    GCS, 0xfed1c000 + 0x3410
        .set    TCO, 0x600 + 0x60       /* where SeaBIOS has put it */

        .code16
start:  cli
        xorw    %ax, %ax
        movw    %ax, %ds
        reach_all
        movl    $GCS, %edi
        andb    $0xdf, %fs:(%edi)       /* the second end of the timer resets */
        xorw    %ax, %ax
        movw    $(TCO + 8), %dx
        outw    %ax, %dx                /* the timer does not stand */
        movb    $4, %al
        movw    $(TCO + 0x12), %dx
        outw    %ax, %dx                /* of 0.6 s */
        movw    $TCO, %dx
        outw    %ax, %dx                /* begin */
        stand_still
