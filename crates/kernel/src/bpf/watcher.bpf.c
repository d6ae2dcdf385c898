// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The consistency watcher: sees every bpf(2) call of every process on its way in and on its way out, and bumps
 * the epochs of the programs that depend on a written map before the write happens.
 *
 * The whole protocol, with the argument why it is safe, stands in src/watcher.rs. In short, for a call that may
 * write, in this order:
 *
 *   entry: remember what is begun; count it begun; bump the epochs; then the kernel does the write.
 *   exit:  look at the arguments again (another thread may have changed them); bump again; log the key; count
 *          what was begun as ended.
 *
 * Whatever cannot be read, or differs between entry and exit, is a write to everything.
 *
 * Kernel structures are declared with the fields in use only; libbpf relocates them (CO-RE). Layouts shared
 * with user space are repeated in src/watcher/layout.rs.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* Both programs must read kernel memory, which the kernel allows to GPL-compatible programs only. */
char _license[] SEC("license") = "Dual BSD/GPL";

#define SLOTS 64
#define MAX_WATCHED 1024
#define RING_RECORDS 4096
#define KEY_MAX 40
#define KEY_WORDS (KEY_MAX / 8)

/* System call numbers of x86-64; compat is i386, by `int 0x80` or from a 32-bit process. */
#define NR_BPF 321
#define NR_BPF_COMPAT 357
#define X32_BIT 0x40000000
#define PF_KTHREAD 0x00200000
/* Last command that this watcher knows (BPF_PROG_ASSOC_STRUCT_OPS); anything later may write. */
#define LAST_COMMAND 38

/* Offsets in union bpf_attr. Batch commands keep the descriptor behind four pointers and a count. */
#define FD_AT 0
#define BATCH_FD_AT 36
#define ATTACH_TYPE_AT 8
/* Most maps that a program can hold (MAX_USED_MAPS). */
#define MAX_HELD 64
#define EINVAL 22

#define __core __attribute__((preserve_access_index))

struct pt_regs {
	unsigned long di, si, dx, orig_ax;
} __core;

struct file {
	void *private_data;
} __core;

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
} __core;

struct files_struct {
	struct fdtable *fdt;
} __core;

struct task_struct {
	unsigned int flags;
	int pid, tgid;
	struct task_struct *group_leader;
	__u64 start_boottime;
	char comm[16];
	struct files_struct *files;
} __core;

struct bpf_map {
	enum bpf_map_type map_type;
	__u32 key_size;
	__u32 id;
} __core;

struct bpf_prog_aux {
	__u32 used_map_cnt;
	struct bpf_map **used_maps;
} __core;

struct bpf_prog {
	enum bpf_prog_type type;
	struct bpf_prog_aux *aux;
} __core;

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __core;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} __core;

/* Off only in the checker's self-test, which must notice that the guard has become blind. */
const volatile __u64 bump_enabled SEC(".rodata.config") = 1;

/* One epoch per optimized program, each on its own cache line. They only ever increase. */
struct slot {
	__u64 epoch;
	__u64 unused[7];
};
struct slot epochs[SLOTS] SEC(".bss.epochs");

/* Writes begun and ended, and the programs (slots) that depend on the map. */
struct watched_map {
	__u64 begun;
	__u64 ended;
	__u64 slots;
	__u64 map_id;
	__u64 unused[4];
};

struct shared {
	/* Calls that may write anything: SYSCALL programs, new iterators, unreadable arguments. */
	__u64 all_begun;
	__u64 all_ended;
	/* Calls that could not be remembered; user space waits until no thread is inside bpf(2). */
	__u64 lost;
	/* Raised by user space to tell calls that entered before from those after. */
	__u64 generation;
	__u64 ring_reserved;
	__u64 ring_written;
	/* The process whose new programs are known: thread group and start time in clock ticks. */
	__u64 owner_tgid;
	__u64 owner_start;
	struct watched_map maps[MAX_WATCHED];
};
struct shared shared SEC(".bss.state");

#define KEY_KNOWN 1
#define ANY_MAP 2

struct record {
	__u64 sequence;
	__u32 map_id;
	__u16 command;
	__u16 key_len;
	__s32 result;
	__u32 flags;
	__u64 key[KEY_WORDS];
};
struct record ring[RING_RECORDS] SEC(".bss.ring");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_WATCHED);
	__type(key, __u32);
	__type(value, __u32);
} watched SEC(".maps");

enum kind {
	IGNORED,
	ONE_KEY,
	WHOLE_MAP,
	/* Writes nothing itself; the program that it makes may, once the call has returned. */
	NEW_PROGRAM,
	ANYTHING,
};

/* What a call writes, as its arguments say. */
struct target {
	__u32 kind;
	__u32 map_id;
	__u32 key_size;
	__u64 key;
};

#define NOTHING 0xffffffff
#define EVERYTHING 0xfffffffe

/* The call that a thread is inside of. */
struct call {
	__u64 inside;
	__u64 generation;
	__u64 attr;
	__u32 size;
	__u32 command;
	__u32 kind;
	__u32 map_id;
	__u32 begun;
	__u32 key_len;
	__u64 key[KEY_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct call);
} calls SEC(".maps");

static __always_inline void bump(__u64 slots)
{
	if (!bump_enabled)
		return;
	for (int i = 0; i < SLOTS && slots; i++, slots >>= 1)
		if (slots & 1)
			__sync_fetch_and_add(&epochs[i].epoch, 1);
}

/* What a descriptor of this process stands for: a struct bpf_map, bpf_prog …, or anything else. False when it
 * cannot be told; null when nothing is open there. A descriptor of some other kind gives a meaningless pointer:
 * then the call fails by itself, and at worst an epoch was bumped for nothing. */
static __always_inline bool behind_fd(__u32 fd, void **object)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct fdtable *table = task->files->fdt;
	struct file *file;

	*object = NULL;
	if (fd >= table->max_fds)
		return true;
	if (bpf_probe_read_kernel(&file, sizeof(file), table->fd + fd))
		return false;
	if (!file)
		return true;
	return !bpf_core_read(object, sizeof(*object), &file->private_data);
}

static __always_inline bool by_owner(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return (__u64)task->tgid == shared.owner_tgid &&
	       task->group_leader->start_boottime / 10000000 == shared.owner_start;
}

/* What a command can do at most, by its number alone. */
static __always_inline __u32 kind_of(__u32 command)
{
	switch (command) {
	case BPF_MAP_UPDATE_ELEM:
	case BPF_MAP_DELETE_ELEM:
	case BPF_MAP_LOOKUP_AND_DELETE_ELEM:
		return ONE_KEY;
	case BPF_MAP_FREEZE:
	case BPF_MAP_LOOKUP_AND_DELETE_BATCH:
	case BPF_MAP_UPDATE_BATCH:
	case BPF_MAP_DELETE_BATCH:
		return WHOLE_MAP;
	case BPF_PROG_LOAD:
		return NEW_PROGRAM;
	case BPF_PROG_TEST_RUN:
	case BPF_LINK_CREATE:
		return ANYTHING;
	default:
		return command > LAST_COMMAND ? ANYTHING : IGNORED;
	}
}

/* A test run writes what the program writes. Programs of other types than SYSCALL reach only maps that they are
 * known to hold; a SYSCALL program can call bpf(2) on any map. */
static __always_inline __u32 kind_of_test_run(__u64 attr, __u32 size)
{
	enum bpf_prog_type type;
	void *object;
	__u32 fd;

	if (size < FD_AT + sizeof(fd) || bpf_probe_read_user(&fd, sizeof(fd), (void *)attr + FD_AT))
		return ANYTHING;
	if (!behind_fd(fd, &object))
		return ANYTHING;
	if (!object)
		return IGNORED;
	if (bpf_core_read(&type, sizeof(type), &((struct bpf_prog *)object)->type))
		return ANYTHING;
	return type == BPF_PROG_TYPE_SYSCALL ? ANYTHING : IGNORED;
}

/* An iterator may be made for a map that its program does not hold. All other links run programs that exist already,
 * and who holds a map is asked of all of those, attached or not. */
static __always_inline __u32 kind_of_link(__u64 attr, __u32 size)
{
	__u32 attach_type;

	if (size < ATTACH_TYPE_AT + sizeof(attach_type) ||
	    bpf_probe_read_user(&attach_type, sizeof(attach_type), (void *)attr + ATTACH_TYPE_AT))
		return ANYTHING;
	return attach_type == BPF_TRACE_ITER ? ANYTHING : IGNORED;
}

/* A change of a map of maps gives programs that hold it a way to write another map. */
static __always_inline bool holds_maps(enum bpf_map_type type)
{
	return type == BPF_MAP_TYPE_ARRAY_OF_MAPS || type == BPF_MAP_TYPE_HASH_OF_MAPS;
}

/* Finds the map that a command's arguments name; anything unreadable makes it ANYTHING. */
static __noinline int find_target(__u32 command, __u64 attr, __u32 size, struct target *target)
{
	struct {
		__u32 fd, unused;
		__u64 key;
	} args = {};
	__u32 fd_at, kind = kind_of(command);
	enum bpf_map_type type;
	struct bpf_map *map;
	void *object;

	if (!target)
		return 0;
	target->map_id = 0;
	target->key_size = 0;
	target->key = 0;
	target->kind = ANYTHING;
	if (kind == NEW_PROGRAM) {
		target->kind = by_owner() ? IGNORED : NEW_PROGRAM;
		return 0;
	}
	if (kind == ANYTHING) {
		if (command == BPF_PROG_TEST_RUN)
			target->kind = kind_of_test_run(attr, size);
		else if (command == BPF_LINK_CREATE)
			target->kind = by_owner() ? IGNORED : kind_of_link(attr, size);
		return 0;
	}
	fd_at = kind == WHOLE_MAP && command != BPF_MAP_FREEZE ? BATCH_FD_AT : FD_AT;
	/* The kernel takes attributes that end early as zeros behind; no real caller does that. */
	if (size < fd_at + sizeof(args.fd) || (kind == ONE_KEY && size < sizeof(args)))
		return 0;
	if (bpf_probe_read_user(&args, kind == ONE_KEY ? sizeof(args) : sizeof(args.fd), (void *)attr + fd_at))
		return 0;
	if (!behind_fd(args.fd, &object))
		return 0;
	target->kind = kind;
	target->key = args.key;
	if (!object)
		return 0;
	map = object;
	if (bpf_core_read(&target->map_id, sizeof(target->map_id), &map->id) ||
	    bpf_core_read(&target->key_size, sizeof(target->key_size), &map->key_size) ||
	    bpf_core_read(&type, sizeof(type), &map->map_type) || holds_maps(type))
		target->kind = ANYTHING;
	return 0;
}

/* Index of a watched map, NOTHING if it is not watched, EVERYTHING if that cannot be told. */
static __always_inline __u32 index_of(__u32 map_id)
{
	__u32 *found = bpf_map_lookup_elem(&watched, &map_id);
	__u32 index;

	if (!found)
		return NOTHING;
	index = *found;
	/* A hash element is used again at once when its key is deleted, even while we look at it. */
	if (index >= MAX_WATCHED || shared.maps[index].map_id != map_id)
		return EVERYTHING;
	return index;
}

static __always_inline void begin(__u32 index)
{
	if (index == EVERYTHING) {
		__sync_fetch_and_add(&shared.all_begun, 1);
		bump(~0ULL);
	} else if (index < MAX_WATCHED) {
		__sync_fetch_and_add(&shared.maps[index].begun, 1);
		bump(shared.maps[index].slots);
	}
}

static __always_inline void bump_index(__u32 index)
{
	if (index == EVERYTHING)
		bump(~0ULL);
	else if (index < MAX_WATCHED)
		bump(shared.maps[index].slots);
}

static __always_inline void end(struct call *call)
{
	__u32 index = call->begun;

	if (index == EVERYTHING)
		__sync_fetch_and_add(&shared.all_ended, 1);
	else if (index < MAX_WATCHED)
		__sync_fetch_and_add(&shared.maps[index].ended, 1);
	call->begun = NOTHING;
	call->inside = 0;
}

static __always_inline __u32 read_key(const struct target *target, __u64 *key)
{
	__u32 len = target->key_size;

	for (int i = 0; i < KEY_WORDS; i++)
		key[i] = 0;
	if (target->kind != ONE_KEY || len == 0 || len > KEY_MAX)
		return 0;
	return bpf_probe_read_user(key, len, (void *)target->key) ? 0 : len;
}

static __always_inline void log_write(struct call *call, __u32 map_id, __u32 flags, long result)
{
	__u64 number = __sync_fetch_and_add(&shared.ring_reserved, 1);
	struct record *record = &ring[number & (RING_RECORDS - 1)];

	record->map_id = map_id;
	record->command = call->command > 0xffff ? 0xffff : call->command;
	record->key_len = flags & KEY_KNOWN ? call->key_len : 0;
	record->result = result;
	record->flags = flags;
	for (int i = 0; i < KEY_WORDS; i++)
		record->key[i] = call->key[i];
	record->sequence = number + 1;
	__sync_fetch_and_add(&shared.ring_written, 1);
}

static __always_inline int enter_bpf(__u32 command, __u64 attr, __u32 size, bool readable)
{
	struct target target = { .kind = ANYTHING };
	struct call *call;
	__u32 index;

	call = bpf_task_storage_get(&calls, bpf_get_current_task_btf(), NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!call) {
		__sync_fetch_and_add(&shared.lost, 1);
		bump(~0ULL);
		return 0;
	}
	/* No thread enters twice: an exit was missed. What it begun ends here. */
	if (call->inside) {
		bump(~0ULL);
		log_write(call, 0, ANY_MAP, -EINVAL);
		end(call);
	}
	call->generation = shared.generation;
	call->attr = attr;
	call->size = size;
	call->command = command;
	call->begun = NOTHING;
	call->key_len = 0;
	call->kind = kind_of(command);
	/* A full barrier: who reads `watched` later than this is seen to be inside by user space. */
	__sync_lock_test_and_set(&call->inside, 1);

	if (readable)
		find_target(command, attr, size, &target);
	call->kind = target.kind;
	call->map_id = target.map_id;
	if (target.kind == IGNORED || target.kind == NEW_PROGRAM)
		return 0;
	index = target.kind == ANYTHING ? EVERYTHING : index_of(target.map_id);
	call->begun = index;
	begin(index);
	if (index < MAX_WATCHED)
		call->key_len = read_key(&target, call->key);
	return 0;
}

/* Whether the key is still the one that was read at entry. */
static __always_inline bool same_key(struct call *call, const struct target *target)
{
	__u64 key[KEY_WORDS], difference = 0;

	if (call->key_len == 0 || read_key(target, key) != call->key_len)
		return false;
	for (int i = 0; i < KEY_WORDS; i++)
		difference |= key[i] ^ call->key[i];
	return difference == 0;
}

/* The programs that depend on a map that a new program holds, all if that cannot be told. */
static __noinline __u64 slots_of_held(long fd)
{
	__u32 count, id, index;
	struct bpf_map **held, *map;
	struct bpf_prog_aux *aux;
	__u64 slots = 0;
	void *object;

	if (fd < 0)
		return 0;
	if (!behind_fd(fd, &object) || !object)
		return ~0ULL;
	if (bpf_core_read(&aux, sizeof(aux), &((struct bpf_prog *)object)->aux) ||
	    bpf_core_read(&count, sizeof(count), &aux->used_map_cnt) ||
	    bpf_core_read(&held, sizeof(held), &aux->used_maps) || count > MAX_HELD)
		return ~0ULL;
	for (__u32 i = 0; i < MAX_HELD && i < count; i++) {
		if (bpf_probe_read_kernel(&map, sizeof(map), held + i) ||
		    bpf_core_read(&id, sizeof(id), &map->id))
			return ~0ULL;
		index = index_of(id);
		if (index == EVERYTHING)
			return ~0ULL;
		if (index < MAX_WATCHED)
			slots |= shared.maps[index].slots;
	}
	return slots;
}

/* A program was loaded. Before its loader can use it, whoever specialized a map that it holds must know. */
static __always_inline void new_program(struct call *call, long fd)
{
	__u64 slots = slots_of_held(fd);

	if (slots) {
		bump(slots);
		log_write(call, 0, ANY_MAP, fd);
	}
}

static __always_inline int exit_bpf(bool readable, long result)
{
	struct target target = { .kind = ANYTHING };
	struct call *call;
	__u32 index;

	call = bpf_task_storage_get(&calls, bpf_get_current_task_btf(), NULL, 0);
	if (!call || !call->inside)
		return 0;
	if (readable)
		find_target(call->command, call->attr, call->size, &target);
	if (target.kind == IGNORED && call->kind == IGNORED) {
		call->inside = 0;
		return 0;
	}
	if (target.kind == NEW_PROGRAM && call->kind == NEW_PROGRAM) {
		new_program(call, result);
		call->inside = 0;
		return 0;
	}
	if (target.kind == ANYTHING || target.kind != call->kind || target.map_id != call->map_id)
		index = EVERYTHING;
	else
		index = index_of(target.map_id);
	bump_index(index);
	if (index == EVERYTHING)
		log_write(call, 0, ANY_MAP, result);
	else if (index < MAX_WATCHED)
		log_write(call, target.map_id, same_key(call, &target) ? KEY_KNOWN : 0, result);
	end(call);
	return 0;
}

static __always_inline bool is_bpf(long number)
{
	return (number & ~(long)X32_BIT) == NR_BPF;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(enter, struct pt_regs *regs, long number)
{
	if (is_bpf(number)) {
		__u32 command = regs->di;

		if (kind_of(command) != IGNORED)
			return enter_bpf(command, regs->si, regs->dx, true);
	} else if (number == NR_BPF_COMPAT) {
		return enter_bpf(NOTHING, 0, 0, false);
	}
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(leave, struct pt_regs *regs, long result)
{
	long number = regs->orig_ax;

	if (is_bpf(number)) {
		if (kind_of(regs->di) != IGNORED)
			return exit_bpf(true, result);
	} else if (number == NR_BPF_COMPAT) {
		return exit_bpf(false, result);
	}
	return 0;
}

/* Reports threads that are inside a bpf(2) call that the watcher did not see enter, or that looked up a watched
 * map before the present generation. A thread without storage that is inside has not met the entry hook (yet).
 * Calls that may write everything looked nothing up and are counted as begun, and those that load a program look up what
 * it holds when they end: no need to wait for those here. */
SEC("iter/task")
int scan(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct {
		__u32 pid, tgid;
		char comm[16];
	} thread = {};
	struct pt_regs *regs;
	struct call *call;

	if (!task || task->flags & PF_KTHREAD)
		return 0;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	if (is_bpf(regs->orig_ax)) {
		if (kind_of(regs->di) == IGNORED)
			return 0;
	} else if (regs->orig_ax != NR_BPF_COMPAT) {
		return 0;
	}
	call = bpf_task_storage_get(&calls, task, NULL, 0);
	if (call && (!call->inside || call->kind == IGNORED || call->kind == NEW_PROGRAM ||
		     call->begun == EVERYTHING || call->generation >= shared.generation))
		return 0;
	thread.pid = task->pid;
	thread.tgid = task->tgid;
	bpf_probe_read_kernel(&thread.comm, sizeof(thread.comm), &task->comm);
	bpf_seq_write(ctx->meta->seq, &thread, sizeof(thread));
	return 0;
}
