/* A member of a group of corosync's CPG, as a benchmark's application: `cpg_load PID MEMBERS SIZE sends|pings|listens`.
 *
 * It enters the mounts of the corosync with that process id, joins, and says "ready" when so many members are there. Then
 * it is told "WARMUP SECONDS" on a line, does its part for so long, and says what it measured, as JSON. It goes on taking
 * what comes until its standard input ends, as members that leave would disturb those that still measure.
 */
#define _GNU_SOURCE
#include <corosync/cpg.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SAMPLES_MAX 1000000

static size_t members, came;
static uint64_t delivered, touched;
static int own, pings;
static unsigned int own_node;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void deliver(cpg_handle_t handle, const struct cpg_name *group, uint32_t node, uint32_t pid, void *message, size_t size)
{
	(void)handle; (void)group; (void)size;
	touched += *(unsigned char *)message;
	delivered++;
	if (pings && node == own_node && pid == (uint32_t)getpid())
		own = 1;
}

static void changed(cpg_handle_t handle, const struct cpg_name *group, const struct cpg_address *list, size_t count,
	const struct cpg_address *left, size_t left_count, const struct cpg_address *joined, size_t joined_count)
{
	(void)handle; (void)group; (void)list; (void)left; (void)left_count; (void)joined; (void)joined_count;
	came = count;
}

static void die(const char *what, int code)
{
	fprintf(stderr, "cpg_load: %s: %d\n", what, code);
	exit(1);
}

static void take(cpg_handle_t handle, int fd, int wait_ms)
{
	struct pollfd wanted = { .fd = fd, .events = POLLIN };
	if (poll(&wanted, 1, wait_ms) > 0) {
		cs_error_t error = cpg_dispatch(handle, CS_DISPATCH_ALL);
		if (error != CS_OK)
			die("cpg_dispatch", error);
	}
}

static int before(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* As much as flow control takes: several messages for each look at what has come. */
static void flood(cpg_handle_t handle, int fd, struct iovec *message, double until)
{
	while (now() < until) {
		cs_error_t error = CS_OK;
		for (int sent = 0; sent < 32 && error == CS_OK; sent++)
			error = cpg_mcast_joined(handle, CPG_TYPE_AGREED, message, 1);
		if (error != CS_OK && error != CS_ERR_TRY_AGAIN)
			die("cpg_mcast_joined", error);
		take(handle, fd, error == CS_OK ? 0 : 1);
	}
}

static void ping(cpg_handle_t handle, int fd, struct iovec *message, double until, double *samples, size_t *count)
{
	while (now() < until && *count < SAMPLES_MAX) {
		double began = now();
		cs_error_t error;
		own = 0;
		while ((error = cpg_mcast_joined(handle, CPG_TYPE_AGREED, message, 1)) == CS_ERR_TRY_AGAIN)
			take(handle, fd, 1);
		if (error != CS_OK)
			die("cpg_mcast_joined", error);
		while (!own)
			take(handle, fd, 1000);
		samples[(*count)++] = now() - began;
	}
}

int main(int argc, char **argv)
{
	static cpg_callbacks_t callbacks = { .cpg_deliver_fn = deliver, .cpg_confchg_fn = changed };
	struct cpg_name group = { .length = 5, .value = "bench" };
	cpg_handle_t handle;
	char path[64], line[128];
	double warmup, seconds;
	int fd, error;

	if (argc != 5) {
		fprintf(stderr, "usage: cpg_load PID MEMBERS SIZE sends|pings|listens\n");
		return 2;
	}
	snprintf(path, sizeof path, "/proc/%s/ns/mnt", argv[1]);
	fd = open(path, O_RDONLY);
	if (fd < 0 || setns(fd, CLONE_NEWNS) != 0)
		die("setns", 0);
	members = strtoul(argv[2], NULL, 10);
	struct iovec message = { .iov_len = strtoul(argv[3], NULL, 10) };
	message.iov_base = calloc(1, message.iov_len);
	pings = strcmp(argv[4], "pings") == 0;
	if ((error = cpg_initialize(&handle, &callbacks)) != CS_OK)
		die("cpg_initialize", error);
	if ((error = cpg_local_get(handle, &own_node)) != CS_OK)
		die("cpg_local_get", error);
	if ((error = cpg_join(handle, &group)) != CS_OK)
		die("cpg_join", error);
	cpg_fd_get(handle, &fd);
	while (came < members)
		take(handle, fd, 100);
	puts("{\"ready\": true}");
	fflush(stdout);
	if (fgets(line, sizeof line, stdin) == NULL || sscanf(line, "%lf %lf", &warmup, &seconds) != 2)
		return 1;

	double *samples = malloc(SAMPLES_MAX * sizeof *samples), start = now(), since = start + warmup, until = since + seconds;
	size_t count = 0;
	for (int measured = 0; measured < 2; measured++) {
		double end = measured ? until : since;
		count = 0;
		delivered = 0;
		if (pings)
			ping(handle, fd, &message, end, samples, &count);
		else if (strcmp(argv[4], "sends") == 0)
			flood(handle, fd, &message, end);
		else
			while (now() < end)
				take(handle, fd, 10);
	}
	double took = now() - since;
	qsort(samples, count, sizeof *samples, before);
	printf("{\"delivered\": %llu, \"per_second\": %.1f, \"pings\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
		(unsigned long long)delivered, delivered / took, count, count ? samples[count / 2] * 1e6 : 0.0,
		count ? samples[count * 99 / 100] * 1e6 : 0.0);
	fflush(stdout);
	struct pollfd input = { .fd = 0, .events = POLLIN };
	while (poll(&input, 1, 0) == 0)
		take(handle, fd, 10);
	cpg_leave(handle, &group);
	cpg_finalize(handle);
	return (int)(touched & 0);
}
