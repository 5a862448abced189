/* A driver library of one H100 for `nvidia-ml-py`: it loses the GPU after its second reading, and reports Xid 79. */

#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, TIMEOUT = 10, LOST = 15 };
enum { XID_EVENT = 0x8, POWER_CAP = 0x4 };

static int device, events, readings, is_sent;

typedef struct { unsigned int gpu, memory; } Rates;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { void *device; unsigned long long type, data; unsigned int gpu_instance, compute_instance; } Event;

#define IS_LOST (readings > 2)
#define READ(name, type, value) \
	int name(void *gpu, type *found) { if (IS_LOST) return LOST; *found = value; return SUCCESS; }

int nvmlInitWithFlags(unsigned int flags) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned int *found) { *found = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **found) { *found = &device; return SUCCESS; }
int nvmlDeviceGetUUID(void *gpu, char *text, unsigned int length) { strncpy(text, "GPU-1", length); return SUCCESS; }
int nvmlDeviceGetName(void *gpu, char *text, unsigned int length) { strncpy(text, "NVIDIA H100 80GB HBM3", length); return SUCCESS; }
int nvmlDeviceGetUtilizationRates(void *gpu, Rates *found) { readings++; if (IS_LOST) return LOST; found->gpu = 97; return SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *gpu, Memory *found) { if (IS_LOST) return LOST; found->total = 80; found->used = 70; return SUCCESS; }
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned int *found) { if (IS_LOST) return LOST; *found = 61; return SUCCESS; }
READ(nvmlDeviceGetPowerUsage, unsigned int, 652300)
READ(nvmlDeviceGetEnforcedPowerLimit, unsigned int, 700000)
int nvmlDeviceGetClockInfo(void *gpu, int kind, unsigned int *found) { *found = 1755; return IS_LOST ? LOST : SUCCESS; }
int nvmlDeviceGetMaxClockInfo(void *gpu, int kind, unsigned int *found) { *found = 1980; return IS_LOST ? LOST : SUCCESS; }
int nvmlDeviceGetTotalEccErrors(void *gpu, int kind, int counter, unsigned long long *found) { *found = 0; return IS_LOST ? LOST : SUCCESS; }
READ(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, POWER_CAP)
int nvmlDeviceGetRetiredPagesPendingStatus(void *gpu, int *found) { return NOT_SUPPORTED; }
int nvmlDeviceGetRemappedRows(void *gpu, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failed)
{
	*corrected = *uncorrected = *pending = *failed = 0;
	return IS_LOST ? LOST : SUCCESS;
}
int nvmlEventSetCreate(void **found) { *found = &events; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *gpu, unsigned long long kinds, void *set) { return kinds == XID_EVENT ? SUCCESS : NOT_SUPPORTED; }
int nvmlEventSetWait_v2(void *set, Event *found, unsigned int timeout_ms)
{
	if (readings < 2 || is_sent) { usleep(1000 * timeout_ms); return TIMEOUT; }
	is_sent = 1;
	found->device = &device;
	found->type = XID_EVENT;
	found->data = 79;
	return SUCCESS;
}
