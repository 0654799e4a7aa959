"""Scheduling of rows of many callers for one model."""

from tfexport.runtime.scheduler.scheduler import Scheduler as Scheduler
from tfexport.runtime.scheduler.scheduler import SchedulerLimits as SchedulerLimits
from tfexport.runtime.scheduler.scheduler import SchedulerStats as SchedulerStats
from tfexport.runtime.scheduler.sounds import SoundRequest as SoundRequest
from tfexport.runtime.scheduler.submission import Observer as Observer
from tfexport.runtime.scheduler.submission import Submission as Submission
