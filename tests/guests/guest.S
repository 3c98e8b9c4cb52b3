/* A guest that does nothing but count its own work: 8 MB, no operating system, any number of vCPUs.
 *
 * Multiboot, 32-bit, no paging. Every vCPU has 64 bytes at COUNTERS + 64 * APIC id:
 *   +0  u64  rounds of work done; a round is ROUND turns of the same few instructions
 *   +8  u32  written by the host: LAPIC timer ticks of 4 ns to sleep after each NAP_EVERY rounds, 0 = never
 * The host reads and writes them in the file behind the guest's memory.
 */
.set MAGIC, 0x1BADB002
.set FLAGS, 0x00010000          /* the addresses below are used: the file is a flat binary */
.set COUNTERS, 0x200000
.set STACKS, 0x300000           /* 4 KiB each, by APIC id, growing down */
.set TRAMPOLINE, 0x8000
.set LAPIC, 0xFEE00000
.set ROUND, 20000
.set NAP_EVERY, 16

.code32
.text
header: .long MAGIC, FLAGS, -(MAGIC + FLAGS), header, header, image_end, image_end, start

.globl start
start:
        cli
        movb $0xFF, %al                  /* no interrupts but the local APIC's */
        outb %al, $0x21
        outb %al, $0xA1
        movl $trampoline, %esi
        movl $TRAMPOLINE, %edi
        movl $(trampoline_end - trampoline), %ecx
        cld
        rep movsb
        /* Wake all other vCPUs: INIT, then a start-up interrupt to the trampoline's page. */
        movl $0x000C4500, LAPIC + 0x300
        movl $200000, %ecx
1:      decl %ecx
        jnz 1b
        movl $(0x000C4600 | (TRAMPOLINE >> 12)), LAPIC + 0x300
        jmp work

.code16
trampoline:
        cli
        xorw %ax, %ax
        movw %ax, %ds
        lgdtl TRAMPOLINE + (gdt_pointer - trampoline)
        movl %cr0, %eax
        orb $1, %al
        movl %eax, %cr0
        ljmpl $0x08, $work
gdt_pointer:
        .word 23
        .long gdt
trampoline_end:

.code32
work:
        lgdt long_gdt_pointer
        ljmp $0x08, $1f
1:      movw $0x10, %ax
        movw %ax, %ds
        movw %ax, %es
        movw %ax, %ss
        movl LAPIC + 0x20, %ebx
        shrl $24, %ebx
        movl %ebx, %eax
        shll $12, %eax
        leal STACKS + 0x1000(%eax), %esp
        shll $6, %ebx
        addl $COUNTERS, %ebx
        lidt idt_pointer
        movl $0x1FF, LAPIC + 0xF0        /* enable the local APIC */
        movl $0x01, LAPIC + 0x3E0        /* its timer at a quarter: 4 ns */
        movl $0x20, LAPIC + 0x320        /* one shot, vector 0x20 */
rounds:
        movl $NAP_EVERY, %edi
round:
        movl $ROUND, %ecx
        movl $0x9E3779B9, %eax
turn:   movl %eax, %edx
        shll $13, %edx
        xorl %edx, %eax
        addl %ecx, %eax
        decl %ecx
        jnz turn
        addl $1, (%ebx)
        adcl $0, 4(%ebx)
        decl %edi
        jnz round
        movl 8(%ebx), %eax
        testl %eax, %eax
        jz rounds
        movl %eax, LAPIC + 0x380
        sti
        hlt
        cli
        jmp rounds

timer:  movl $0, LAPIC + 0xB0            /* end of interrupt */
        iret

.align 16
gdt:    .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
long_gdt_pointer:
        .word 23
        .long gdt
idt_pointer:
        .word 0x21 * 8 - 1
        .long idt
.align 16
idt:    .fill 0x20, 8, 0
        .word timer - header + 0x0000, 0x08, 0x8E00, 0x0010   /* timer is below 1 MiB + 64 KiB */
image_end:
