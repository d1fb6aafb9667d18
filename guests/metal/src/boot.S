# Ring 0: from the machine's firmware to ring 3, and the way to wait for an interrupt.
#
# A KVM that emulates a guest's ring 0 (see docs/decisions/0058) emulates few instructions. What is here is what both
# it and a complete processor execute:
#
#   to ring 3      sysretq (such a KVM knows no iret)
#   to ring 0      an exception through the IDT: ud2 at `wait_here`
#   to wait        sti; hlt; then the interrupt's gate, which throws its frame away and goes back by sysretq
#
# Ring 3 runs with interrupts off, so an interrupt comes only while ring 0 waits, and no state is ever to be restored.

        .section .note.pvh, "a", @note
        .align 4
        .long 4, 4, 18                  # XEN_ELFNOTE_PHYS32_ENTRY
        .asciz "Xen"
        .long start

        .set CODE0, 0x08                # selectors
        .set DATA0, 0x10
        .set TSS, 0x38
        .set SYSRET_BASE, 0x18          # +8: data of ring 3, +16: code of ring 3
        .set FLAGS3, 0x3002             # ring 3 may use ports; interrupts off
        .set PORTS, 104                 # the map of ports that ring 3 may use: all
        .set TSS_BYTES, PORTS+8192+1
        .set USER, 0x27                 # present, writable, user, accessed
        .set LARGE, 0xe7                # and dirty, and a page of 2 MiB
        .set GIB_MAPPED, 17             # 16 GiB and the hole below 4 GiB

        .text
        .code32
        .globl start
start:
        cli
        mov $stack0_top, %esp
        mov %ebx, start_info
        mov $0xff, %al                  # nothing from the old interrupt controllers
        out %al, $0x21
        out %al, $0xa1
        lgdt gdtr
        mov $tss, %eax                  # the descriptor of the task state, whose place is spread over it
        mov %ax, gdt_tss+2
        shr $16, %eax
        mov %al, gdt_tss+4
        mov %ah, gdt_tss+7

        movl $pdpt+USER, pml4
        mov $pd+USER, %eax
        xor %ecx, %ecx
1:      mov %eax, pdpt(,%ecx,8)
        add $4096, %eax
        inc %ecx
        cmp $GIB_MAPPED, %ecx
        jb 1b
        mov $LARGE, %eax
        xor %edx, %edx
        xor %ecx, %ecx
2:      mov %eax, pd(,%ecx,8)
        mov %edx, pd+4(,%ecx,8)
        add $0x200000, %eax
        adc $0, %edx
        inc %ecx
        cmp $GIB_MAPPED*512, %ecx
        jb 2b

        mov %cr4, %eax
        or $0x620, %eax                 # physical address extension; vector registers
        mov %eax, %cr4
        mov $pml4, %eax
        mov %eax, %cr3
        mov $0xc0000080, %ecx           # EFER: long mode, sysret
        mov $0x101, %eax
        xor %edx, %edx
        wrmsr
        mov %cr0, %eax
        and $~0xc, %eax                 # no emulation of the floating-point unit, no trap
        or $0x80000002, %eax            # paging; monitor the coprocessor
        mov %eax, %cr0
        ljmp $CODE0, $long_mode

        .code64
long_mode:
        mov $DATA0, %ax
        mov %ax, %ds
        mov %ax, %es
        mov %ax, %ss
        mov $TSS, %ax
        ltr %ax
        mov $stack0_top, %eax           # for exceptions of ring 3
        mov $tss, %ebx
        mov %eax, 4(%rbx)
        movw $PORTS, 102(%rbx)          # such a KVM forgets that FLAGS3 allows ports
        mov $idt, %edi
        mov $gates, %eax
        mov $256, %ecx
3:      mov %ax, (%rdi)
        movw $CODE0, 2(%rdi)
        movw $0x8e00, 4(%rdi)
        mov %eax, %ebx
        shr $16, %ebx
        mov %bx, 6(%rdi)
        movl $0, 8(%rdi)
        movl $0, 12(%rdi)
        add $16, %edi
        add $16, %eax
        dec %ecx
        jnz 3b
        mov $idtr, %edi
        lidt (%rdi)
        mov $0xc0000081, %ecx           # STAR
        xor %eax, %eax
        mov $(SYSRET_BASE << 16 | CODE0), %edx
        wrmsr
        mov $0xc0000084, %ecx           # no flags are masked
        xor %eax, %eax
        xor %edx, %edx
        wrmsr
        mov $ring3, %ecx
        mov $FLAGS3, %r11d
        sysretq

ring3:
        mov $stack3_top, %esp
        mov $rest, %edi                 # what link.ld leaves out of the file's segments
        mov $image_end, %ecx
        sub %edi, %ecx
        xor %eax, %eax
        rep stosb
        mov start_info, %edi
        call life
        ud2

# Ring 3: waits for an interrupt. What it needs afterwards is in registers that ring 0 leaves alone.
        .globl wait
wait:
        mov %rsp, %r8
        lea 5f(%rip), %rcx
        mov $FLAGS3, %r11d
wait_here:
        ud2
5:      ret

        .align 16
gates:
        .set vector, 0
        .rept 256
        .align 16
        mov $vector, %eax
        .if vector == 6
        jmp undefined
        .elseif vector < 32
        jmp fatal
        .else
        jmp interrupted
        .endif
        .set vector, vector+1
        .endr

undefined:
        cmpq $wait_here, (%rsp)
        jne fatal
        sti
        hlt
interrupted:
        mov %r8, %rsp
        sysretq

# Says which exception, and the two words on top of the stack: the error code and its address, or the address first.
fatal:
        mov %rax, %rbx
        mov $'!', %al
        call put
        call put_hex
        pop %rbx
        call put_hex
        pop %rbx
        call put_hex
        mov $'\n', %al
        call put
        cli
        hlt
        jmp fatal
put_hex:
        mov $16, %ebp
6:      rol $4, %rbx
        mov %ebx, %eax
        and $15, %al
        add $'0', %al
        cmp $'9', %al
        jbe 7f
        add $39, %al
7:      call put
        dec %ebp
        jnz 6b
        mov $' ', %al
put:
        mov $0x3f8, %dx
        out %al, %dx
        ret

        .data
        .align 16
idtr:   .word 4095
        .quad idt
        .align 16
gdt:    .quad 0
        .quad 0x00af9b000000ffff        # code of ring 0
        .quad 0x00cf93000000ffff        # data of ring 0
        .quad 0
        .quad 0x00cff3000000ffff        # data of ring 3
        .quad 0x00affb000000ffff        # code of ring 3
        .quad 0
gdt_tss: .quad 0x0000890000000000+TSS_BYTES-1
        .quad 0
gdtr:   .word gdtr-gdt-1
        .long gdt
start_info: .long 0

        .section .loaded_bss, "aw", @nobits
        .align 4096
pml4:   .skip 4096
pdpt:   .skip 4096
pd:     .skip 4096*GIB_MAPPED
tss:    .skip TSS_BYTES
        .align 4096
idt:    .skip 4096
        .skip 4096
stack0_top:
        .skip 65536*4
stack3_top:
