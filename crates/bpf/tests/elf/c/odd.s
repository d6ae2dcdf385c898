# Programs that must be refused, each for its own reason, and one that must not.
	.section	xdp,"ax",@progbits

	.globl	fine
	.type	fine,@function
fine:
	r0 = 2
	exit
.Lfine_end:
	.size	fine, .Lfine_end-fine

	.globl	map_by_number
	.type	map_by_number,@function
map_by_number:
	.byte	0x18, 0x11, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
	exit
.Lmap_by_number_end:
	.size	map_by_number, .Lmap_by_number_end-map_by_number

	.globl	kfunc_by_number
	.type	kfunc_by_number,@function
kfunc_by_number:
	.byte	0x85, 0x20, 0, 0, 9, 0, 0, 0
	exit
.Lkfunc_by_number_end:
	.size	kfunc_by_number, .Lkfunc_by_number_end-kfunc_by_number

	.globl	into_the_middle
	.type	into_the_middle,@function
into_the_middle:
	.byte	0x85, 0x10, 0, 0, 0, 0, 0, 0
	exit
.Linto_the_middle_end:
	.size	into_the_middle, .Linto_the_middle_end-into_the_middle

	.globl	half_an_immediate
	.type	half_an_immediate,@function
half_an_immediate:
	.byte	0x18, 0, 0, 0, 3, 0, 0, 0
.Lhalf_end:
	.size	half_an_immediate, .Lhalf_end-half_an_immediate

	.globl	beyond_the_data
	.type	beyond_the_data,@function
beyond_the_data:
	r1 = number + 4 ll
	exit
.Lbeyond_end:
	.size	beyond_the_data, .Lbeyond_end-beyond_the_data

	.globl	strange_section
	.type	strange_section,@function
strange_section:
	r1 = thing ll
	exit
.Lstrange_end:
	.size	strange_section, .Lstrange_end-strange_section

	.globl	empty
	.type	empty,@function
empty:
	.size	empty, 0

	.data
	.globl	number
	.type	number,@object
number:
	.long	42
	.size	number, 4

	.section	.arena.1,"aw",@progbits
	.globl	thing
	.type	thing,@object
thing:
	.long	1
	.size	thing, 4
