/* A guest that does nothing but send frames: 8 MB, no operating system, one vCPU, one virtio-net.
 *
 * Multiboot, 32-bit, no paging; the legacy interface of virtio over PCI. The 64 bytes at COUNTERS:
 *   +0  u64  frames that the device has taken
 *   +8  u32  written by the host: turns of a loop to work after each batch, 0 = none
 */
.set MAGIC, 0x1BADB002
.set FLAGS, 0x00010000          /* the addresses below are used: the file is a flat binary */
.set COUNTERS, 0x200000
.set STACK, 0x310000
.set RING, 0x400000             /* 256 descriptors, then what is offered, then what was used */
.set OFFERED, RING + 0x1000
.set USED, RING + 0x2000
.set FRAME, 0x500000
.set FRAME_BYTES, 10 + 1514     /* virtio's header and the longest Ethernet frame */
.set BATCH, 64

.code32
.text
header: .long MAGIC, FLAGS, -(MAGIC + FLAGS), header, header, image_end, image_end, start

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

        movl $0x80000000, %ebx           /* look for virtio-net on PCI bus 0 */
find:   xorl %ecx, %ecx
        call pci_read
        cmpl $0x10001AF4, %eax
        je found
        addl $0x800, %ebx
        cmpl $0x80010000, %ebx
        jb find
dead:   hlt
        jmp dead
found:  movl $4, %ecx                    /* let it use I/O ports and memory */
        call pci_read
        orl $7, %eax
        outl %eax, %dx
        movl $0x10, %ecx
        call pci_read
        andl $~3, %eax
        movl %eax, %esi                  /* its ports */

        leal 0x12(%esi), %edx            /* status: reset, seen, driver */
        movb $0, %al
        outb %al, %dx
        movb $1, %al
        outb %al, %dx
        movb $3, %al
        outb %al, %dx
        leal 4(%esi), %edx               /* no optional feature */
        xorl %eax, %eax
        outl %eax, %dx
        leal 0xE(%esi), %edx             /* queue 1 sends */
        movw $1, %ax
        outw %ax, %dx
        leal 8(%esi), %edx
        movl $(RING >> 12), %eax
        outl %eax, %dx
        leal 0x12(%esi), %edx            /* ready */
        movb $7, %al
        outb %al, %dx

        movl $FRAME + 10, %edi           /* to 02:..:01 from 02:..:02, an experimental type */
        movl $0x00000002, (%edi)
        movl $0x00020100, 4(%edi)
        movl $0x02000000, 8(%edi)
        movw $0xB588, 12(%edi)
        movl $RING, %edi                 /* every descriptor is the same frame */
        movl $256, %ecx
1:      movl $FRAME, (%edi)
        movl $0, 4(%edi)
        movl $FRAME_BYTES, 8(%edi)
        movl $0, 12(%edi)
        addl $16, %edi
        decl %ecx
        jnz 1b
        movl $1, OFFERED                 /* flags: no interrupts, please; index 0 */
        movl $COUNTERS, %ebx
        xorl %ebp, %ebp                  /* offered so far */
        xorl %edi, %edi                  /* used so far */

send:   movzwl USED + 2, %edx
        movl %edx, %eax
        subl %edi, %eax
        movzwl %ax, %eax
        movl %edx, %edi
        addl %eax, (%ebx)
        adcl $0, 4(%ebx)
        movl %ebp, %ecx
        subl %edx, %ecx
        movzwl %cx, %ecx                 /* on their way */
        cmpl $(256 - BATCH), %ecx
        ja wait
        movl $BATCH, %ecx
1:      movl %ebp, %eax
        andl $255, %eax
        movw %ax, OFFERED + 4(,%eax,2)
        incl %ebp
        decl %ecx
        jnz 1b
        movw %bp, OFFERED + 2
        lock; addl $0, (%esp)            /* the index is out before the flag is read */
        testw $1, USED
        jnz wait                         /* the device is at it anyway */
        leal 0x10(%esi), %edx
        movw $1, %ax
        outw %ax, %dx
wait:   movl 8(%ebx), %eax
        testl %eax, %eax
        jz send
1:      cmpl $0, 8(%ebx)                 /* the host may call it off */
        je send
        decl %eax
        jnz 1b
        jmp send

pci_read:                                /* register ECX of function EBX: EAX, its port in DX */
        leal (%ebx,%ecx), %eax
        movw $0xCF8, %dx
        outl %eax, %dx
        movw $0xCFC, %dx
        inl %dx, %eax
        ret

.align 16
gdt:    .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
gdt_pointer:
        .word 23
        .long gdt
image_end:
