"""Commands that run in the background: started, watched, talked to, ended, and found again after a crash of ours."""
