/* A guest that answers requests: 8 MB, no operating system, one vCPU, one serial port.
 *
 * Multiboot, 32-bit, no paging. A request is a byte at the first serial port; the answer, after the work, is the
 * same byte. Between requests the vCPU sleeps. The 64 bytes at COUNTERS:
 *   +0  u64  requests answered, and one when it is ready
 *   +8  u32  written by the host: turns of a loop for each request
 */
.set MAGIC, 0x1BADB002
.set FLAGS, 0x00010000          /* the addresses below are used: the file is a flat binary */
.set COUNTERS, 0x200000
.set STACK, 0x310000
.set LAPIC, 0xFEE00000
.set COM1, 0x3F8

.code32
.text
header: .long MAGIC, FLAGS, -(MAGIC + FLAGS), header, header, image_end, image_end, start

.macro port to, value
        movw $\to, %dx
        movb $\value, %al
        outb %al, %dx
.endm

.globl start
start:
        cli
        lgdt gdt_pointer
        ljmp $0x08, $1f
1:      movw $0x10, %ax
        movw %ax, %ds
        movw %ax, %es
        movw %ax, %ss
        movl $STACK, %esp
        lidt idt_pointer
        port 0x20, 0x11                  /* the interrupt controller: vectors from 0x20, the serial port alone */
        port 0x21, 0x20
        port 0x21, 0x04
        port 0x21, 0x01
        port 0x21, 0xEF
        port 0xA1, 0xFF
        movl $0x1FF, LAPIC + 0xF0        /* the local APIC passes its interrupts on */
        movl $0x700, LAPIC + 0x350
        port COM1 + 3, 0x03              /* 8 bits; an interrupt for each byte */
        port COM1 + 4, 0x0B
        port COM1 + 1, 0x01
        movl $COUNTERS, %ebx
        addl $1, (%ebx)

sleep:  movw $(COM1 + 5), %dx
        inb %dx, %al
        testb $1, %al
        jnz answer
        sti                              /* takes effect after the next instruction: no interrupt is missed */
        hlt
        cli
        jmp sleep
answer: movw $COM1, %dx
        inb %dx, %al
        movl 8(%ebx), %ecx
        incl %ecx
1:      decl %ecx
        jnz 1b
        outb %al, %dx
        addl $1, (%ebx)
        adcl $0, 4(%ebx)
        jmp sleep

serial: pushl %eax
        movb $0x20, %al                  /* end of interrupt */
        outb %al, $0x20
        popl %eax
        iret

.align 16
gdt:    .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
gdt_pointer:
        .word 23
        .long gdt
idt_pointer:
        .word 0x25 * 8 - 1
        .long idt
.align 16
idt:    .fill 0x24, 8, 0
        .word serial - header + 0x0000, 0x08, 0x8E00, 0x0010   /* it is below 1 MiB + 64 KiB */
image_end:
