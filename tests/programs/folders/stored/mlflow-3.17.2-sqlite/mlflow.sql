CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('dc11669786a5');
CREATE TABLE "experiments" (
	experiment_id INTEGER NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	artifact_location VARCHAR(256), 
	lifecycle_stage VARCHAR(32), 
	creation_time BIGINT, 
	last_update_time BIGINT, 
	workspace VARCHAR(63) DEFAULT 'default' NOT NULL, 
	CONSTRAINT experiment_pk PRIMARY KEY (experiment_id), 
	CONSTRAINT experiments_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')), 
	CONSTRAINT uq_experiments_workspace_name UNIQUE (workspace, name)
);
INSERT INTO "experiments" VALUES(0,'Default','somewhere/mlruns/0','active',1795762000029,1795762000029,'default');
INSERT INTO "experiments" VALUES(1,'example','somewhere/somewhere','active',1795762000049,1795762000049,'default');
CREATE TABLE "latest_metrics" (
	"key" VARCHAR(250) NOT NULL, 
	value FLOAT NOT NULL, 
	timestamp BIGINT, 
	step BIGINT NOT NULL, 
	is_nan BOOLEAN NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT latest_metric_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid), 
	CHECK (is_nan IN (0, 1))
);
INSERT INTO "latest_metrics" VALUES('loss',1.5,1795762000201,30,0,'1433c69ac1004a51a089fe9b5017973d');
INSERT INTO "latest_metrics" VALUES('val/accuracy',0.25,1795762000209,20,0,'1433c69ac1004a51a089fe9b5017973d');
INSERT INTO "latest_metrics" VALUES('loss',2.0,1795762000259,30,0,'e51eb1d4e7ff4a408c80c53a6833fe82');
INSERT INTO "latest_metrics" VALUES('val/accuracy',0.5,1795762000266,20,0,'e51eb1d4e7ff4a408c80c53a6833fe82');
INSERT INTO "latest_metrics" VALUES('loss',1.75,1795762000317,30,0,'13e2bdc152bd427f86104c07fd1f8cc1');
INSERT INTO "latest_metrics" VALUES('val/accuracy',0.25,1795762000325,20,0,'13e2bdc152bd427f86104c07fd1f8cc1');
INSERT INTO "latest_metrics" VALUES('loss',0.0,1795762000357,30,1,'c448c363b6464234bed483861227a275');
INSERT INTO "latest_metrics" VALUES('val/accuracy',0.5,1795762000365,20,0,'c448c363b6464234bed483861227a275');
INSERT INTO "latest_metrics" VALUES('loss',9.0,1795762000393,0,0,'4def8b2a02d94ce1b39c71b8fa3f7f72');
INSERT INTO "latest_metrics" VALUES('loss',-1.79769313486231562234e+308,1795762000425,0,0,'c28aaeae5639407190d382824bad8996');
CREATE TABLE "metrics" (
	"key" VARCHAR(250) NOT NULL, 
	value FLOAT NOT NULL, 
	timestamp BIGINT NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	step BIGINT DEFAULT '0' NOT NULL, 
	is_nan BOOLEAN DEFAULT '0' NOT NULL, 
	CONSTRAINT metric_pk PRIMARY KEY ("key", timestamp, step, run_uuid, value, is_nan), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid), 
	CHECK (is_nan IN (0, 1))
);
INSERT INTO "metrics" VALUES('loss',2.0,1795762000170,'1433c69ac1004a51a089fe9b5017973d',10,0);
INSERT INTO "metrics" VALUES('loss',1.25,1795762000189,'1433c69ac1004a51a089fe9b5017973d',20,0);
INSERT INTO "metrics" VALUES('loss',1.5,1795762000201,'1433c69ac1004a51a089fe9b5017973d',30,0);
INSERT INTO "metrics" VALUES('val/accuracy',0.25,1795762000209,'1433c69ac1004a51a089fe9b5017973d',20,0);
INSERT INTO "metrics" VALUES('loss',2.5,1795762000245,'e51eb1d4e7ff4a408c80c53a6833fe82',10,0);
INSERT INTO "metrics" VALUES('loss',1.75,1795762000253,'e51eb1d4e7ff4a408c80c53a6833fe82',20,0);
INSERT INTO "metrics" VALUES('loss',2.0,1795762000259,'e51eb1d4e7ff4a408c80c53a6833fe82',30,0);
INSERT INTO "metrics" VALUES('val/accuracy',0.5,1795762000266,'e51eb1d4e7ff4a408c80c53a6833fe82',20,0);
INSERT INTO "metrics" VALUES('loss',2.25,1795762000306,'13e2bdc152bd427f86104c07fd1f8cc1',10,0);
INSERT INTO "metrics" VALUES('loss',1.5,1795762000313,'13e2bdc152bd427f86104c07fd1f8cc1',20,0);
INSERT INTO "metrics" VALUES('loss',1.75,1795762000317,'13e2bdc152bd427f86104c07fd1f8cc1',30,0);
INSERT INTO "metrics" VALUES('val/accuracy',0.25,1795762000325,'13e2bdc152bd427f86104c07fd1f8cc1',20,0);
INSERT INTO "metrics" VALUES('loss',2.75,1795762000349,'c448c363b6464234bed483861227a275',10,0);
INSERT INTO "metrics" VALUES('loss',2.0,1795762000352,'c448c363b6464234bed483861227a275',20,0);
INSERT INTO "metrics" VALUES('loss',0.0,1795762000357,'c448c363b6464234bed483861227a275',30,1);
INSERT INTO "metrics" VALUES('val/accuracy',0.5,1795762000365,'c448c363b6464234bed483861227a275',20,0);
INSERT INTO "metrics" VALUES('loss',9.0,1795762000393,'4def8b2a02d94ce1b39c71b8fa3f7f72',0,0);
INSERT INTO "metrics" VALUES('loss',-1.79769313486231562234e+308,1795762000425,'c28aaeae5639407190d382824bad8996',0,0);
CREATE TABLE "params" (
	"key" VARCHAR(250) NOT NULL, 
	value VARCHAR(8000) NOT NULL, 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT param_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid)
);
INSERT INTO "params" VALUES('arm','base','1433c69ac1004a51a089fe9b5017973d');
INSERT INTO "params" VALUES('seed','0','1433c69ac1004a51a089fe9b5017973d');
INSERT INTO "params" VALUES('optimizer.lr','0.125','1433c69ac1004a51a089fe9b5017973d');
INSERT INTO "params" VALUES('arm','base','e51eb1d4e7ff4a408c80c53a6833fe82');
INSERT INTO "params" VALUES('seed','1','e51eb1d4e7ff4a408c80c53a6833fe82');
INSERT INTO "params" VALUES('optimizer.lr','0.125','e51eb1d4e7ff4a408c80c53a6833fe82');
INSERT INTO "params" VALUES('arm','wide','13e2bdc152bd427f86104c07fd1f8cc1');
INSERT INTO "params" VALUES('seed','0','13e2bdc152bd427f86104c07fd1f8cc1');
INSERT INTO "params" VALUES('optimizer.lr','0.25','13e2bdc152bd427f86104c07fd1f8cc1');
INSERT INTO "params" VALUES('arm','wide','c448c363b6464234bed483861227a275');
INSERT INTO "params" VALUES('seed','1','c448c363b6464234bed483861227a275');
INSERT INTO "params" VALUES('optimizer.lr','0.25','c448c363b6464234bed483861227a275');
CREATE TABLE "runs" (
	run_uuid VARCHAR(32) NOT NULL, 
	name VARCHAR(250), 
	source_type VARCHAR(20), 
	source_name VARCHAR(500), 
	entry_point_name VARCHAR(50), 
	user_id VARCHAR(256), 
	status VARCHAR(9), 
	start_time BIGINT, 
	end_time BIGINT, 
	source_version VARCHAR(50), 
	lifecycle_stage VARCHAR(20), 
	artifact_uri VARCHAR(200), 
	experiment_id INTEGER, deleted_time BIGINT, 
	CONSTRAINT run_pk PRIMARY KEY (run_uuid), 
	CONSTRAINT runs_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')), 
	CONSTRAINT source_type CHECK (source_type IN ('NOTEBOOK', 'JOB', 'LOCAL', 'UNKNOWN', 'PROJECT')), 
	FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id), 
	CHECK (status IN ('SCHEDULED', 'FAILED', 'FINISHED', 'RUNNING', 'KILLED'))
);
INSERT INTO "runs" VALUES('1433c69ac1004a51a089fe9b5017973d','base-seed0','UNKNOWN','','','somewhere','FINISHED',1795762000127,1795762000215,'','active','somewhere/somewhere/1433c69ac1004a51a089fe9b5017973d/artifacts',1,NULL);
INSERT INTO "runs" VALUES('e51eb1d4e7ff4a408c80c53a6833fe82','base-seed1','UNKNOWN','','','somewhere','FINISHED',1795762000226,1795762000276,'','active','somewhere/somewhere/e51eb1d4e7ff4a408c80c53a6833fe82/artifacts',1,NULL);
INSERT INTO "runs" VALUES('13e2bdc152bd427f86104c07fd1f8cc1','wide-seed0','UNKNOWN','','','somewhere','FINISHED',1795762000282,1795762000328,'','active','somewhere/somewhere/13e2bdc152bd427f86104c07fd1f8cc1/artifacts',1,NULL);
INSERT INTO "runs" VALUES('c448c363b6464234bed483861227a275','wide-seed1','UNKNOWN','','','somewhere','FINISHED',1795762000333,1795762000369,'','active','somewhere/somewhere/c448c363b6464234bed483861227a275/artifacts',1,NULL);
INSERT INTO "runs" VALUES('4def8b2a02d94ce1b39c71b8fa3f7f72','deleted','UNKNOWN','','','somewhere','FINISHED',1795762000377,1795762000401,'','deleted','somewhere/somewhere/4def8b2a02d94ce1b39c71b8fa3f7f72/artifacts',1,1795762000406);
INSERT INTO "runs" VALUES('c28aaeae5639407190d382824bad8996','unfinished','UNKNOWN','','','unknown','RUNNING',1795762000413,NULL,'','active','somewhere/somewhere/c28aaeae5639407190d382824bad8996/artifacts',1,NULL);
CREATE TABLE "tags" (
	"key" VARCHAR(250) NOT NULL, 
	value VARCHAR(8000), 
	run_uuid VARCHAR(32) NOT NULL, 
	CONSTRAINT tag_pk PRIMARY KEY ("key", run_uuid), 
	FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid)
);
INSERT INTO "tags" VALUES('mlflow.user','somewhere','1433c69ac1004a51a089fe9b5017973d');
INSERT INTO "tags" VALUES('purpose','a test','1433c69ac1004a51a089fe9b5017973d');
INSERT INTO "tags" VALUES('mlflow.runName','base-seed0','1433c69ac1004a51a089fe9b5017973d');
INSERT INTO "tags" VALUES('mlflow.user','somewhere','e51eb1d4e7ff4a408c80c53a6833fe82');
INSERT INTO "tags" VALUES('purpose','a test','e51eb1d4e7ff4a408c80c53a6833fe82');
INSERT INTO "tags" VALUES('mlflow.runName','base-seed1','e51eb1d4e7ff4a408c80c53a6833fe82');
INSERT INTO "tags" VALUES('mlflow.user','somewhere','13e2bdc152bd427f86104c07fd1f8cc1');
INSERT INTO "tags" VALUES('purpose','a test','13e2bdc152bd427f86104c07fd1f8cc1');
INSERT INTO "tags" VALUES('mlflow.runName','wide-seed0','13e2bdc152bd427f86104c07fd1f8cc1');
INSERT INTO "tags" VALUES('mlflow.user','somewhere','c448c363b6464234bed483861227a275');
INSERT INTO "tags" VALUES('purpose','a test','c448c363b6464234bed483861227a275');
INSERT INTO "tags" VALUES('mlflow.runName','wide-seed1','c448c363b6464234bed483861227a275');
INSERT INTO "tags" VALUES('mlflow.user','somewhere','4def8b2a02d94ce1b39c71b8fa3f7f72');
INSERT INTO "tags" VALUES('mlflow.runName','deleted','4def8b2a02d94ce1b39c71b8fa3f7f72');
INSERT INTO "tags" VALUES('mlflow.runName','unfinished','c28aaeae5639407190d382824bad8996');
