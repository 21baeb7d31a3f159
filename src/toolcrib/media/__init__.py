"""Looks at images and videos: the service behind `vision_analyze` and `video_analyze`."""
