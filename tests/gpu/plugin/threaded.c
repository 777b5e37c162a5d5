/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threaded.c - a device of another version, whose library starts a thread when
 * it is loaded, as libraries of drivers do.
 *
 * OWNS      the thread, which never ends.
 *
 * LOCKING   none.
 */
#include <pthread.h>
#include <unistd.h>

#include <kvfs_device.h>

extern const struct kvfs_device kvfs_device_threaded;

static void *run(void *arg)
{
	for (;;)
		usleep(1000);
	return arg;
}

__attribute__((constructor)) static void start(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, run, NULL) == 0)
		pthread_detach(thread);
}

const struct kvfs_device kvfs_device_threaded = {
	.version = KVFS_DEVICE_VERSION + 1,
	.name = "threaded",
};
