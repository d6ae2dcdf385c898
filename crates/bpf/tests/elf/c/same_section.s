# A program and its static subprogram in one section, a call without relocation, and an address of a local one.
	.text
	.section	xdp,"ax",@progbits
	.globl	entry
	.type	entry,@function
entry:
	r1 = 7
	call local
	call local
	exit
.Lentry_end:
	.size	entry, .Lentry_end-entry

	.type	local,@function
local:
	r0 = r1
	r0 += 1
	exit
.Llocal_end:
	.size	local, .Llocal_end-local

	.section	xdp/only_local,"ax",@progbits
	.type	hidden_entry,@function
hidden_entry:
	r0 = -5 ll
	exit
.Lhidden_end:
	.size	hidden_entry, .Lhidden_end-hidden_entry
