/* SPDX-License-Identifier: Apache-2.0 */
/*
 * point_table.c - kill points; part of the daemon in a build with POINTS=1.
 *
 * OWNS      the table of points, in memory that may be shared with a test, and
 *           the settings from the environment.
 *
 * LOCKING   none: everything but the atomic counters is fixed before main.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/crash/point_table.h"

#define SLOW_PASSES 8u

extern struct kv_point __start_kv_points[], __stop_kv_points[];

static struct kv_point_table own, *table = &own;
/* number of the kill point that is to kill the process; set from the
 * environment */
static uint32_t deadly = UINT32_MAX, slow = UINT32_MAX;
static uint64_t deadly_hit, slow_ms;
static const char *lie;

static void share(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	void *at;

	if (fd < 0)
		return;
	at = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		  0);
	close(fd);
	if (at != MAP_FAILED)
		table = at;
}

/* Return the number of a kill point; points of one name are one point. */
static uint32_t number_of(const char *name, uint32_t n)
{
	uint32_t i = 0;

	while (i < n && strcmp(table->entry[i].name, name) != 0)
		i++;
	if (i == KV_POINTS_MAX || strlen(name) >= KV_POINT_NAME)
		abort();
	strcpy(table->entry[i].name, name);
	return i;
}

/* Parse NAME:NUMBER, the value of a variable; NULL: it is not set. */
static void choose(const char *which, uint32_t n, uint32_t *ret_point,
		   uint64_t *ret_number)
{
	const char *colon = which ? strrchr(which, ':') : NULL;

	if (!which)
		return;
	if (!colon)
		abort();
	for (uint32_t i = 0; i < n; i++)
		if (strncmp(table->entry[i].name, which,
			    (size_t)(colon - which)) == 0 &&
		    table->entry[i].name[colon - which] == '\0')
			*ret_point = i;
	if (*ret_point == UINT32_MAX)
		abort();
	*ret_number = strtoull(colon + 1, NULL, 10);
}

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("KVFS_POINTS");
	uint32_t n = 0;

	lie = getenv("KVFS_LIE");
	if (path)
		share(path);
	for (struct kv_point *p = __start_kv_points; p < __stop_kv_points;
	     p++) {
		p->number = number_of(p->name, n);
		if (p->number == n)
			n++;
	}
	atomic_store(&table->n, n);
	choose(getenv("KVFS_POINT"), n, &deadly, &deadly_hit);
	choose(getenv("KVFS_SLOW"), n, &slow, &slow_ms);
}

void kv_point_pass(const struct kv_point *point)
{
	uint64_t hit = atomic_fetch_add(&table->entry[point->number].hits, 1);

	if (point->number == deadly && hit + 1 >= deadly_hit)
		raise(SIGKILL);
	if (point->number == slow && hit < SLOW_PASSES)
		usleep((useconds_t)slow_ms * 1000);
}

bool kv_point_lies(const char *what)
{
	return lie && strcmp(lie, what) == 0;
}
