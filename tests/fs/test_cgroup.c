/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cgroup.c - memory limits, read from files as the kernel, container
 * engines and systemd lay them out; tests/mount/memory.sh uses real control
 * groups where the machine has them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <sys/stat.h>

#include "fs/daemon.h"

static char root[64];

static int make_root(void **state)
{
	(void)state;
	strcpy(root, "/tmp/kvfs-cgroup-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
	char command[96];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", root);
	return system(command);
}

static void put(const char *path, const char *text)
{
	char whole[256];
	FILE *f;

	snprintf(whole, sizeof(whole), "%s%s", root, path);
	for (char *slash = strchr(whole + 1, '/'); slash;
	     slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		(void)mkdir(whole, 0755);
		*slash = '/';
	}
	f = fopen(whole, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

enum { PAGES, HUGE_PAGES };

static void is(bool what, uint64_t bytes, const char *file)
{
	struct kv_cgroup_limit limit;

	kv_cgroup_limit(root, what, &limit);
	assert_int_equal(limit.bytes, bytes);
	assert_string_equal(limit.file, file);
}

#define UNIFIED \
	"30 1 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
#define OLD(root)                                                     \
	"31 1 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"            \
	"33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" \
	"35 31 0:32 " root                                            \
	" /sys/fs/cgroup/memory rw shared:3 - cgroup cgroup rw,memory\n"

static void without_files_nothing_is_limited(void **state)
{
	(void)state;
	is(PAGES, UINT64_MAX, "");
	put("/proc/self/mountinfo", UNIFIED);
	is(PAGES, UINT64_MAX, "");
	put("/proc/self/cgroup", "nonsense\n0:\n:\n");
	is(PAGES, UINT64_MAX, "");
	put("/proc/self/cgroup", "0::/a\n");
	put("/sys/fs/cgroup/a/memory.max", "max\n");
	put("/sys/fs/cgroup/a/memory.high", "");
	is(PAGES, UINT64_MAX, "");
}

static void the_lowest_of_the_group_and_those_above_counts(void **state)
{
	(void)state;
	put("/proc/self/mountinfo", UNIFIED);
	put("/proc/self/cgroup", "0::/pod/kvfs\n");
	put("/sys/fs/cgroup/pod/kvfs/memory.max", "4096000\n");
	put("/sys/fs/cgroup/pod/memory.max", "8192000\n");
	is(PAGES, 4096000, "/sys/fs/cgroup/pod/kvfs/memory.max");
	put("/sys/fs/cgroup/pod/memory.high", "2048000\n");
	is(PAGES, 2048000, "/sys/fs/cgroup/pod/memory.high");
	is(HUGE_PAGES, UINT64_MAX, "");
	put("/sys/fs/cgroup/pod/hugetlb.2MB.max", "0\n");
	is(HUGE_PAGES, 0, "/sys/fs/cgroup/pod/hugetlb.2MB.max");
}

static void in_a_namespace_the_group_is_the_root(void **state)
{
	(void)state;
	put("/proc/self/mountinfo", UNIFIED);
	put("/sys/fs/cgroup/memory.max", "123\n");
	put("/proc/self/cgroup", "0::/\n");
	is(PAGES, 123, "/sys/fs/cgroup/memory.max");
	put("/proc/self/cgroup", "0::/../outside\n");
	put("/sys/fs/outside/memory.max", "1\n");
	is(PAGES, 123, "/sys/fs/cgroup/memory.max");
}

static void version_1_is_not_read(void **state)
{
	(void)state;
	put("/proc/self/mountinfo", OLD("/"));
	put("/proc/self/cgroup", "8:cpu:/c\n4:memory,x:/m\n0::/m\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9000\n");
	put("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "7000\n");
	put("/sys/fs/cgroup/memory/m/memory.max", "6000\n");
	is(PAGES, UINT64_MAX, "");
	is(HUGE_PAGES, UINT64_MAX, "");
}

static void a_container_has_its_own_group_mounted(void **state)
{
	(void)state;
	put("/proc/self/mountinfo", "30 1 0:27 /docker/abc /sys/fs/cgroup rw - "
				    "cgroup2 cgroup2 rw\n");
	put("/proc/self/cgroup", "0::/docker/abc\n");
	put("/sys/fs/cgroup/memory.max", "5000\n");
	is(PAGES, 5000, "/sys/fs/cgroup/memory.max");
	put("/proc/self/cgroup", "0::/docker/abcdef\n");
	is(PAGES, 5000, "/sys/fs/cgroup/memory.max");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(without_files_nothing_is_limited),
		TEST(the_lowest_of_the_group_and_those_above_counts),
		TEST(in_a_namespace_the_group_is_the_root),
		TEST(version_1_is_not_read),
		TEST(a_container_has_its_own_group_mounted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
