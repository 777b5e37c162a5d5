/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_options.c - the daemon's command line: what is refused, and what is understood.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "fs/daemon.h"

#define MIB (UINT64_C(1) << 20)

/* Parse the command line "NAME -o WORDS /s/tore /m". */
static int parse_as(const char *name, const char *words,
		    struct kv_options *ret_options, char **ret_why)
{
	char *argv[] = {(char *)name,	   (char *)"-o", (char *)words,
			(char *)"/s/tore", (char *)"/m", NULL};

	return kv_options_parse(5, argv, ret_options, ret_why);
}

static struct kv_options good(const char *words)
{
	struct kv_options options;
	char *why = NULL;

	if (parse_as("kvfs", words, &options, &why) != 0)
		fail_msg("%s: refused: %s", words, why);
	return options;
}

/* Assert that the option in @words is refused by one line that names the
 * option. */
static void bad(const char *words)
{
	_cleanup_(kv_freep) char *name = strdup(words);
	struct kv_options options;
	char *why = NULL;

	name[strcspn(name, "=")] = '\0';
	if (parse_as("kvfs", words, &options, &why) != -EINVAL)
		fail_msg("%s: not refused", words);
	assert_non_null(why);
	assert_non_null(strstr(why, name));
	assert_null(strchr(why, '\n'));
	free(why);
}

static void every_size_that_is_not_exactly_one_is_refused(void **state)
{
	static const char *const names[] = {"dram", "ssd", "segment", "scrub",
					    "ssd_write"};
	static const char *const values[] = {"",
					     "-1",
					     "-64M",
					     "+64M",
					     " 64M",
					     "64M ",
					     "64MB",
					     "64m",
					     "64k",
					     "64MM",
					     "1.5G",
					     "0x10M",
					     "1e3",
					     "M",
					     "%",
					     "abc",
					     "18446744073709551616",
					     "18446744073709551615",
					     "9223372036854775808",
					     "16777216T",
					     "99999999999999999999999G",
					     "-5%",
					     "0%",
					     "101%",
					     "50%%",
					     "50%M"};
	char words[128];

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(names); i++)
		for (size_t j = 0; j < KV_ARRAY_LEN(values); j++) {
			snprintf(words, sizeof(words), "%s=%s", names[i],
				 values[j]);
			bad(words);
		}
	bad("dram");
	bad("ssd");
	bad("segment");
}

static void too_small_or_impossible_sizes_are_refused(void **state)
{
	(void)state;
	bad("dram=0");
	bad("dram=1");
	bad("dram=15M");
	bad("dram=16777215");
	bad("dram=1000000G");
	bad("ssd=1M");
	bad("segment=0");
	bad("segment=7M");
	bad("segment=8388607");
	bad("segment=10%");
	bad("scrub=10%");
	bad("ssd_write=10%");
}

static void words_with_other_values_are_refused(void **state)
{
	static const char *const words[] = {"hugepages=",
					    "hugepages=yes",
					    "hugepages=ON",
					    "hugepages=on2",
					    "hugepages",
					    "writeback=some",
					    "writeback=",
					    "evict=arc",
					    "evict=",
					    "evict",
					    "arena=open",
					    "arena=",
					    "remote_tenant=x",
					    "remote=",
					    "control=",
					    "control",
					    "allow=",
					    "allow=root",
					    "allow=1:",
					    "allow=:1",
					    "allow=1::2",
					    "allow=@",
					    "allow=1:@@2",
					    "allow=-1",
					    "allow=4294967295",
					    "mkdir=root",
					    "mkdir=",
					    "root=",
					    "root=all",
					    "root_mode=",
					    "root_mode=2777",
					    "root_mode=789",
					    "uid=",
					    "uid=-1",
					    "uid=root",
					    "uid=4294967295",
					    "uid=99999999999999999999",
					    "gid=0x0",
					    "gid=1.0",
					    "umask=8",
					    "umask=1000",
					    "umask=-1",
					    "umask=",
					    "ro=1",
					    "ro=",
					    "rw=1",
					    "allow_other=yes",
					    "allow_other=",
					    "bogus",
					    "bogus=1",
					    "=",
					    "=1",
					    "dram =1G",
					    "Dram=1G",
					    "drams=1G",
					    "dra=1G"};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(words); i++)
		bad(words[i]);
}

static void a_bad_word_is_found_among_good_ones(void **state)
{
	struct kv_options options;
	char *why = NULL;

	(void)state;
	assert_int_equal(
		parse_as("kvfs", "dram=64M,ssd=1G,bogus,ro", &options, &why),
		-EINVAL);
	assert_non_null(strstr(why, "bogus"));
	free(why);
}

static void a_control_path_longer_than_a_socket_address_is_refused(void **state)
{
	char words[200] = "control=/";

	(void)state;
	memset(words + 9, 'x', 110);
	bad(words);
}

static void a_comma_in_a_value_is_written_behind_a_backslash(void **state)
{
	struct kv_options o = good("control=/a\\,b\\\\,\\c\\,,uid=7,,"
				   "remote=dir:/d\\,e");

	(void)state;
	assert_string_equal(o.control, "/a,b\\,\\c,");
	assert_int_equal(o.rules.uid, 7);
	assert_string_equal(o.cache.remote.url, "dir:/d,e");
	kv_options_fini(&o);
}

static int parse_argv(int argc, const char *const *argv,
		      struct kv_options *ret_options)
{
	char *copy[16] = {0}, *why = NULL;
	int r;

	for (int i = 0; i < argc; i++)
		copy[i] = (char *)argv[i];
	r = kv_options_parse(argc, copy, ret_options, &why);
	assert_true(r == 0 || why);
	free(why);
	return r;
}

static void wrong_numbers_of_arguments_and_letters_are_refused(void **state)
{
	static const char *const none[] = {"kvfs"};
	static const char *const one[] = {"kvfs", "/s"};
	static const char *const three[] = {"kvfs", "/s", "/m", "/x"};
	static const char *const letter[] = {"kvfs", "-x", "/s", "/m"};
	static const char *const of_mount[] = {"kvfs", "-n", "/s", "/m"};
	static const char *const longer[] = {"kvfs", "--bogus", "/s", "/m"};
	static const char *const no_value[] = {"kvfs", "/s", "/m", "-o"};
	static const char *const no_store[] = {"kvfs", "", "/m"};
	static const char *const no_mount[] = {"kvfs", "/s", ""};
	struct kv_options o;

	(void)state;
	assert_int_equal(parse_argv(1, none, &o), -EINVAL);
	assert_int_equal(parse_argv(2, one, &o), -EINVAL);
	assert_int_equal(parse_argv(4, three, &o), -EINVAL);
	assert_int_equal(parse_argv(4, letter, &o), -EINVAL);
	assert_int_equal(parse_argv(4, of_mount, &o), -EINVAL);
	assert_int_equal(parse_argv(4, longer, &o), -EINVAL);
	assert_int_equal(parse_argv(4, no_value, &o), -EINVAL);
	assert_int_equal(parse_argv(3, no_store, &o), -EINVAL);
	assert_int_equal(parse_argv(3, no_mount, &o), -EINVAL);
}

static void sizes_have_units_and_percentages(void **state)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * 4096;
	struct kv_options o;

	(void)state;
	o = good("dram=16777216,ssd=2G,segment=9M,scrub=0,ssd_write=1T");
	assert_int_equal(o.cache.dram, 16 * MIB);
	assert_int_equal(o.cache.ssd, 2048 * MIB);
	assert_true(o.cache.ssd_given);
	/* segment= is rounded up to whole huge pages */
	assert_int_equal(o.cache.segment, 8 * MIB);
	assert_int_equal(o.cache.scrub, 0);
	assert_int_equal(o.cache.ssd_write, MIB * MIB);
	kv_options_fini(&o);
	o = good("dram=10%,ssd=0");
	assert_true(o.cache.dram > memory / 11 && o.cache.dram <= memory / 10);
	assert_int_equal(o.cache.ssd, 0);
	assert_true(o.cache.ssd_given);
	kv_options_fini(&o);
}

static void the_defaults_are_those_of_the_manual(void **state)
{
	struct kv_options o = good("");

	(void)state;
	assert_true(o.cache.dram >= 16 * MIB);
	assert_false(o.cache.ssd_given);
	assert_true(o.cache.ssd > 0);
	assert_int_equal(o.cache.segment, 256 * MIB);
	assert_int_equal(o.cache.hugepages, KV_HUGE_AUTO);
	assert_int_equal(o.cache.writeback, KV_WRITEBACK_ALL);
	assert_string_equal(o.cache.evict, "lhd");
	assert_int_equal(o.cache.scrub, 20 * MIB);
	assert_int_equal(o.cache.ssd_write, 0);
	assert_int_equal(o.cache.why, 1u << 20);
	assert_int_equal(o.cache.arena, KV_ARENA_AUTO);
	assert_false(o.cache.read_only);
	assert_null(o.control);
	assert_int_equal(o.closed, geteuid() == 0);
	assert_int_equal(o.rules.n_allow, geteuid() == 0);
	assert_int_equal(o.rules.mkdir, geteuid() == 0);
	assert_int_equal(o.rules.squash, 0);
	assert_int_equal(o.rules.mode, geteuid() == 0 ? 01777 : 0755);
	assert_false(o.allow_other);
	assert_int_equal(o.seccomp, 0);
	assert_int_equal(o.action, KV_RUN);
	assert_string_equal(o.store, "/s/tore");
	assert_string_equal(o.mountpoint, "/m");
	kv_options_fini(&o);
}

static void every_word_is_understood(void **state)
{
	struct kv_options o;

	(void)state;
	o = good("hugepages=off,writeback=reuse,evict=lru,arena=rw,"
		 "control=/x/y,uid=7,gid=8,umask=027,allow_other,ro");
	assert_int_equal(o.cache.hugepages, KV_HUGE_OFF);
	assert_int_equal(o.cache.writeback, KV_WRITEBACK_REUSE);
	assert_string_equal(o.cache.evict, "lru");
	assert_int_equal(o.cache.arena, KV_ARENA_RW);
	assert_true(o.allow_other && o.cache.read_only);
	assert_string_equal(o.control, "/x/y");
	assert_int_equal(o.rules.uid, 7);
	assert_int_equal(o.rules.gid, 8);
	assert_int_equal(o.umask, 027);
	kv_options_fini(&o);
	o = good("allow=5,allow=all,mkdir=operator,seccomp=off");
	assert_int_equal(o.rules.n_allow, 0);
	assert_int_equal(o.rules.mkdir, 1);
	assert_int_equal(o.seccomp, 1);
	assert_false(o.closed);
	assert_int_equal(o.allow_other, geteuid() == 0);
	kv_options_fini(&o);
	o = good("allow=5");
	assert_int_equal(o.rules.mkdir, 0);
	kv_options_fini(&o);
	o = good("mkdir=all");
	assert_int_equal(o.rules.n_allow, 0);
	assert_int_equal(o.allow_other, geteuid() == 0);
	kv_options_fini(&o);
	o = good("allow=5,allow=1000:@100:0,mkdir=operator,root=squash,"
		 "root_mode=1750");
	assert_int_equal(o.rules.n_allow, 3);
	assert_int_equal(o.rules.allow[0].id, 1000);
	assert_false(o.rules.allow[0].is_group);
	assert_int_equal(o.rules.allow[1].id, 100);
	assert_true(o.rules.allow[1].is_group);
	assert_int_equal(o.rules.allow[2].id, 0);
	assert_int_equal(o.rules.mkdir, 1);
	assert_int_equal(o.rules.squash, 1);
	assert_int_equal(o.rules.mode, 01750);
	kv_options_fini(&o);
}

static void words_for_fuse_are_passed_on(void **state)
{
	struct kv_options o = good("noexec,ro");

	(void)state;
	assert_string_equal(o.fuse, "noexec");
	kv_options_fini(&o);
	o = good("ro");
	assert_null(o.fuse);
	kv_options_fini(&o);
}

static void the_last_of_a_word_counts(void **state)
{
	struct kv_options o = good("dram=64M,ro,dram=32M,,rw");

	(void)state;
	assert_int_equal(o.cache.dram, 32 * MIB);
	assert_false(o.cache.read_only);
	kv_options_fini(&o);
}

static void the_words_of_mount_8_are_accepted(void **state)
{
	struct kv_options o =
		good("rw,nofail,_netdev,noatime,nosuid,nodev,user,users,"
		     "defaults,x-systemd.automount,noauto,default_permissions");

	(void)state;
	kv_options_fini(&o);
}

static void called_by_mount_options_follow_and_f_is_fake(void **state)
{
	static const char *const argv[] = {"/sbin/mount.kvfs",
					   "/s",
					   "/m",
					   "-s",
					   "-n",
					   "-v",
					   "-f",
					   "-t",
					   "kvfs",
					   "-o",
					   "rw,dram=32M,bogus"};
	static const char *const strict[] = {"mount.kvfs", "/s", "/m", "-o",
					     "bogus"};
	struct kv_options o;

	(void)state;
	assert_int_equal(parse_argv(11, argv, &o), 0);
	assert_int_equal(o.action, KV_FAKE);
	assert_false(o.foreground);
	assert_int_equal(o.cache.dram, 32 * MIB);
	kv_options_fini(&o);
	assert_int_equal(parse_argv(5, strict, &o), -EINVAL);
}

static void paths_become_absolute_and_none_means_no_fuse(void **state)
{
	static const char *const argv[] = {"kvfs", "-f", "./store", "none"};
	static const char *const debug[] = {"kvfs", "-d", "/s", "/m"};
	struct kv_options o;

	(void)state;
	assert_int_equal(parse_argv(4, argv, &o), 0);
	assert_int_equal(o.store[0], '/');
	assert_null(o.mountpoint);
	assert_true(o.foreground);
	kv_options_fini(&o);
	assert_int_equal(parse_argv(4, debug, &o), 0);
	assert_true(o.foreground && o.debug);
	kv_options_fini(&o);
}

static void a_store_without_a_slash_must_exist(void **state)
{
	static const char *const words[] = {"kvfs", "-f", "topp", "none"};
	static const char *const by_mount[] = {"/sbin/mount.kvfs", "topp",
					       "none"};
	static const char *const there[] = {"kvfs", "-f", ".", "none"};
	struct kv_options o;
	char *why;

	(void)state;
	assert_int_equal(kv_options_parse(4, (char **)words, &o, &why),
			 -EINVAL);
	assert_non_null(strstr(why, "write ./topp"));
	free(why);
	assert_int_equal(parse_argv(3, by_mount, &o), 0);
	kv_options_fini(&o);
	assert_int_equal(parse_argv(4, there, &o), 0);
	kv_options_fini(&o);
}

static void help_and_version_need_nothing_else(void **state)
{
	static const char *const help[] = {"kvfs", "--help"};
	static const char *const version[] = {"kvfs", "-V"};
	struct kv_options o;

	(void)state;
	assert_int_equal(parse_argv(2, help, &o), 0);
	assert_int_equal(o.action, KV_SHOW_HELP);
	assert_int_equal(parse_argv(2, version, &o), 0);
	assert_int_equal(o.action, KV_SHOW_VERSION);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_size_that_is_not_exactly_one_is_refused),
		cmocka_unit_test(too_small_or_impossible_sizes_are_refused),
		cmocka_unit_test(words_with_other_values_are_refused),
		cmocka_unit_test(a_bad_word_is_found_among_good_ones),
		cmocka_unit_test(
			a_control_path_longer_than_a_socket_address_is_refused),
		cmocka_unit_test(
			a_comma_in_a_value_is_written_behind_a_backslash),
		cmocka_unit_test(
			wrong_numbers_of_arguments_and_letters_are_refused),
		cmocka_unit_test(sizes_have_units_and_percentages),
		cmocka_unit_test(the_defaults_are_those_of_the_manual),
		cmocka_unit_test(every_word_is_understood),
		cmocka_unit_test(words_for_fuse_are_passed_on),
		cmocka_unit_test(the_last_of_a_word_counts),
		cmocka_unit_test(the_words_of_mount_8_are_accepted),
		cmocka_unit_test(called_by_mount_options_follow_and_f_is_fake),
		cmocka_unit_test(paths_become_absolute_and_none_means_no_fuse),
		cmocka_unit_test(a_store_without_a_slash_must_exist),
		cmocka_unit_test(help_and_version_need_nothing_else),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
