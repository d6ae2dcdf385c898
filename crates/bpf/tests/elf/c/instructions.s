# One of each instruction that the assembler knows.
	.text
	.globl	all
	.type	all,@function
all:
	r1 = xchg_64(r2 + 8, r1)
	w1 = xchg32_32(r2 - 8, w1)
	r0 = cmpxchg_64(r2 + 8, r0, r1)
	w0 = cmpxchg32_32(r2 + 8, w0, w1)
	r1 = atomic_fetch_add((u64 *)(r2 + 0), r1)
	r1 = atomic_fetch_and((u64 *)(r2 + 0), r1)
	w1 = atomic_fetch_or((u32 *)(r2 + 0), w1)
	w1 = atomic_fetch_xor((u32 *)(r2 + 0), w1)
	lock *(u32 *)(r1 + 4) += w2
	lock *(u32 *)(r1 + 4) |= w2
	lock *(u64 *)(r1 + 4) ^= r2
	lock *(u64 *)(r1 - 4) &= r2
	r0 = *(u8 *)skb[14]
	r0 = *(u16 *)skb[14]
	r0 = *(u32 *)skb[r3]
	goto +1
	gotol +5
	may_goto +3
	r1 = (s8)r2
	r1 = (s32)r2
	w1 = (s16)w2
	r1 s/= r2
	w1 s/= 7
	r1 s%= r2
	w1 s%= 5
	r1 /= r2
	r1 %= 9
	r1 = bswap16 r1
	r1 = bswap64 r1
	r1 = be16 r1
	r1 = be32 r1
	r1 = le64 r1
	r1 = *(s8 *)(r2 - 4)
	r1 = *(s16 *)(r2 - 4)
	r1 = *(s32 *)(r2 + 32767)
	r1 = *(u64 *)(r2 - 32768)
	r1 = *(u8 *)(r2 + 4)
	*(u8 *)(r2 + 4) = 3
	*(u16 *)(r2 + 4) = 3
	*(u32 *)(r2 + 4) = -5
	*(u64 *)(r2 + 4) = 2147483647
	*(u64 *)(r2 - 4) = r3
	*(u8 *)(r2 - 4) = r3
	r1 = -r1
	w1 = -w1
	if w1 s> -5 goto +2
	if r1 s<= r2 goto +2
	if r1 s>= 3 goto +2
	if w1 s< w2 goto +2
	if r1 < r2 goto +2
	if r1 <= 6 goto +2
	if r1 >= 6 goto +2
	if w1 > 6 goto +2
	if r1 == 6 goto +2
	if r1 != r3 goto +2
	if r1 & r2 goto -3
	if w1 & 8 goto -3
	r1 = -1 ll
	r1 = 0x123456789a ll
	r1 = 0x8000000000000000 ll
	w1 += -7
	w1 -= w7
	r1 *= 5
	r1 |= r2
	w1 &= 255
	w1 <<= 3
	r1 >>= 3
	r1 s>>= r4
	w1 s>>= 2
	r1 ^= -1
	w1 = w2
	w1 = 5
	r1 = r10
	r1 = addr_space_cast(r2, 1, 0)
	callx r3
	call 17
	exit
.Lend:
	.size	all, .Lend-all
