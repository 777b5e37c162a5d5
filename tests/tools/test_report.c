/* SPDX-License-Identifier: Apache-2.0 */
/* test_report.c - the figures of kvfs-bench as a JSON array. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <jansson.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/bench/report.c"

/* Report @n figures, and return the array. */
static json_t *array_of(unsigned n)
{
	struct kv_bench_figure figure = {.name = "lease",
					 .suffix = "128k",
					 .value = 2,
					 .unit = "us",
					 .most = 1};
	struct kv_bench_report *report;
	int out = memfd_create("out", 0);
	json_t *array;

	assert_int_equal(kv_bench_report_new("/dev/null", NULL, &report), 0);
	for (unsigned i = 0; i < n; i++)
		kv_bench_report_add(report, &figure);
	assert_int_equal(kv_bench_report_json(report, out), 0);
	assert_int_equal(kv_bench_report_close(report), 0);
	lseek(out, 0, SEEK_SET);
	array = json_loadfd(out, 0, NULL);
	close(out);
	assert_int_equal(json_array_size(array), n);
	return array;
}

static void each_figure_is_an_object(void **state)
{
	json_t *array = array_of(2), *row = json_array_get(array, 1);
	const char *name = json_string_value(json_object_get(row, "figure"));

	(void)state;
	assert_string_equal(name, "lease_128k");
	assert_true(json_is_false(json_object_get(row, "met")));
	json_decref(array);
	json_decref(array_of(0));
}

static void an_output_that_cannot_be_written_is_an_error(void **state)
{
	struct kv_bench_report *report;
	int full = open("/dev/full", O_WRONLY);

	(void)state;
	assert_int_equal(kv_bench_report_new("/dev/null", NULL, &report), 0);
	assert_int_equal(kv_bench_report_json(report, full), -ENOSPC);
	assert_int_equal(kv_bench_report_close(report), 0);
	close(full);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_figure_is_an_object),
		cmocka_unit_test(an_output_that_cannot_be_written_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
